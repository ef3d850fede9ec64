"""Reads the records of a report: from a store, a file of records, or ``deepgat train --json``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from deepgat.data.catalogue.entries import ENTRIES
from deepgat.errors import cut_middle, printable
from deepgat.lab.experiments import Record
from deepgat.lab.experiments.schema import TRAINED, check, load_object
from deepgat.lab.experiments.store_entry import parse_record
from deepgat.lab.experiments.transfer import read_lines

LONGEST = 40
"""Characters of a graph's name that a report shows; a longer one is cut in the middle."""


def read_any_records(path: Path) -> list[Record]:
    """The distinct records of a file, with or without checksums."""
    found = read_lines(path, _parse, "the record of a run", strict=False)
    return list({record["signature"]: record for record in found}.values())


def _parse(line: str) -> Record:
    """A record; one without a signature is given the hash of its text."""
    record = load_object(line)
    if "checksum" in record:
        return parse_record(line)
    check(record, TRAINED)
    signature = hashlib.sha256(line.strip().encode()).hexdigest()[:16]
    return {"measures": {}, **record, "signature": signature}


def with_short_names(records: Iterable[Record]) -> list[Record]:
    """Name a user's graph after its folder, in characters that can be shown, and not too many.

    The full path stays in ``data``. A name is unique, and never that of a catalogue dataset.
    """
    found = []
    for record in records:
        data = record.get("data") or {"dataset": record["dataset"], "split": record["split"]}
        found.append({**record, "data": data})
    stems = {
        path: cut_middle(printable(Path(path).name or "graph"), LONGEST)
        for path in dict.fromkeys(record["data"]["dataset"] for record in found)
    }
    names = {path: path for path, stem in stems.items() if stem == path}
    taken = {name.casefold() for name in (*ENTRIES, *names)}
    for path, stem in stems.items():
        if path not in names:
            choices = (stem if i == 1 else f"{stem}-{i}" for i in count(1))
            names[path] = next(name for name in choices if name.casefold() not in taken)
            taken.add(names[path].casefold())
    return [{**record, "dataset": names[record["data"]["dataset"]]} for record in found]
