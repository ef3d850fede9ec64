"""Runs that diverged. Divergence comes from the settings, not the machine, so it is a result.

A store keeps such runs among its failures. A file of records keeps them in a second file beside
it, one JSON object per line. Tables can then tell a diverged run from a missing one, and no one
repeats it.
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
    """The file of diverged runs that belongs to a file of records."""
    return beside(records, "diverged")


def read_diverged(source: Path) -> dict[str, Record]:
    """Signature → failure, from a store or from the file beside a file of records, if it exists."""
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
    """Write the file beside a file of records, by signature; remove it if nothing diverged."""
    path = diverged_beside(records)
    ordered = sorted(failures, key=lambda failure: str(failure["signature"]))
    if ordered:
        lines = (to_json({name: failure[name] for name in KEPT}) for failure in ordered)
        write_whole(path, "".join(lines))
    else:
        path.unlink(missing_ok=True)
