"""Files of records, one JSON object per line, which leave a store's arrays out.

Runs that diverged are results too: divergence comes from the settings, not the machine. A store
keeps them among its failures; a file of records keeps them in a second file beside it. Tables can
then tell a diverged run from a missing one, and no one repeats it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from deepgat.errors import UserError
from deepgat.files import beside
from deepgat.lab.experiments.spec import SECTIONS, signature_of
from deepgat.lab.experiments.store import Store
from deepgat.lab.experiments.store_entry import DamagedEntry, Record, parse_record, spec_values
from deepgat.model_folder import to_json, write_whole

KEPT = ("signature", "error", *SECTIONS, "versions", "hardware")
"""What the file of diverged runs keeps of a failure."""


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records, one JSON object per line, by signature; a name ending in .gz compresses."""
    ordered = sorted(records, key=lambda record: str(record["signature"]))
    content = "".join(to_json(record) for record in ordered).encode()
    # without a time stamp, so that equal records give equal files
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_records(path: Path, parse: Callable[[str], Record] = parse_record) -> list[Record]:
    """The records of a store, or of a file that :func:`write_records` wrote."""
    if path.is_dir():
        return list(Store(path, create=False).records())
    return _read_lines(path, parse, "the record of a run")


def diverged_beside(records: Path) -> Path:
    """The file of diverged runs that belongs to a file of records."""
    return beside(records, "diverged")


def read_diverged(source: Path) -> dict[str, Record]:
    """Signature → failure, from a store or from the file beside a file of records, if it exists."""
    if source.is_dir():
        failures = Store(source, create=False).failures()
        return {name: failure for name, failure in failures.items() if failure.get("diverged")}
    path = diverged_beside(source)
    lines = _read_lines(path, _parse_diverged, "a run that diverged") if path.exists() else []
    return {failure["signature"]: failure for failure in lines}


def write_diverged(records: Path, failures: Iterable[Record]) -> None:
    """Write the file beside a file of records, by signature; remove it if nothing diverged."""
    kept = [{name: failure[name] for name in KEPT} for failure in failures]
    if kept:
        write_records(diverged_beside(records), kept)
    else:
        diverged_beside(records).unlink(missing_ok=True)


def _parse_diverged(line: str) -> Record:
    failure: Record = json.loads(line)
    if failure["signature"] != signature_of(spec_values(failure)):
        raise ValueError("its signature is not that of its settings")
    return failure


def _read_lines(path: Path, parse: Callable[[str], Record], what: str) -> list[Record]:
    try:
        content = path.read_bytes()
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read: expected a store, or a .jsonl or .jsonl.gz file of records"
        ) from error
    found = []
    for number, line in enumerate(lines.splitlines(), start=1):
        try:
            if line.strip():
                found.append(parse(line))
        except (DamagedEntry, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path}, line {number}, is not {what}: {error}") from error
    return found
