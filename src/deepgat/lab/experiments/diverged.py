"""Runs that diverged: what their settings do, on any machine, and so worth knowing elsewhere.

A store has them among its failures. A file of records has them in a file beside it, one JSON object
per line, so that its tables can tell a run that ended without finite numbers from one that nobody
has made, and nobody makes it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from deepgat.errors import UserError
from deepgat.files import beside
from deepgat.lab.experiments.spec import SECTIONS, signature_of
from deepgat.lab.experiments.store import Store
from deepgat.lab.experiments.store_entry import Record, spec_values
from deepgat.model_folder import to_json, write_whole

KEPT = ("signature", "error", *SECTIONS, "versions", "hardware")


def diverged_beside(records: Path) -> Path:
    """Where the runs are named that belong to a file of records and have none."""
    return beside(records, "diverged")


def read_diverged(source: Path) -> dict[str, Record]:
    """Signature → failure, of a store or of what lies beside a file of records, if anything."""
    if source.is_dir():
        failures = Store(source, create=False).failures()
        return {name: failure for name, failure in failures.items() if failure.get("diverged")}
    path = diverged_beside(source)
    if not path.exists():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: expected a line of JSON per run") from error
    found = {}
    for number, line in enumerate(lines, start=1):
        try:
            failure = json.loads(line)
            signature, _ = failure["signature"], failure["error"]
            if signature != signature_of(spec_values(failure)):
                raise ValueError("its signature is not that of its settings")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number}, is not a run that diverged ({error}): remove the line, or "
                "write the file anew with deepgat reproduce"
            ) from error
        found[signature] = failure
    return found


def write_diverged(records: Path, failures: Iterable[Record]) -> None:
    """The file beside some records, ordered by signature; none where nothing diverged."""
    path = diverged_beside(records)
    ordered = sorted(failures, key=lambda failure: str(failure["signature"]))
    if ordered:
        lines = (to_json({name: failure[name] for name in KEPT}) for failure in ordered)
        write_whole(path, "".join(lines))
    else:
        path.unlink(missing_ok=True)
