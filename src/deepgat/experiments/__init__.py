"""Experiments: runs described, made once, and kept."""

from deepgat.experiments.entries import Record, spec_of
from deepgat.experiments.runner import Event, Outcome, run_all
from deepgat.experiments.spec import AnalysisSpec, DataSpec, RunSpec, read_specs
from deepgat.experiments.store import Store
from deepgat.experiments.transfer import export_runs, import_runs, read_records, write_records

__all__ = [
    "AnalysisSpec",
    "DataSpec",
    "Event",
    "Outcome",
    "Record",
    "RunSpec",
    "Store",
    "export_runs",
    "import_runs",
    "read_records",
    "read_specs",
    "run_all",
    "spec_of",
    "write_records",
]
