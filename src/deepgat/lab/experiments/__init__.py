"""Experiments: describe runs, execute each once, and store the results."""

from deepgat.lab.experiments.pool import Event, Outcome, Planned, run_all
from deepgat.lab.experiments.spec import AnalysisSpec, DataSpec, RunSpec, read_specs
from deepgat.lab.experiments.store import Store
from deepgat.lab.experiments.store_entry import Record
from deepgat.lab.experiments.transfer import export_runs, import_runs, read_records, write_records

__all__ = [
    "AnalysisSpec",
    "DataSpec",
    "Event",
    "Outcome",
    "Planned",
    "Record",
    "RunSpec",
    "Store",
    "export_runs",
    "import_runs",
    "read_records",
    "read_specs",
    "run_all",
    "write_records",
]
