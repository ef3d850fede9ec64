"""Reads the records of a report: from a store, a file of records, or ``deepgat train --json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from deepgat.data.catalogue.entries import ENTRIES
from deepgat.lab.experiments import Record, read_records
from deepgat.lab.experiments.store_entry import DamagedEntry, parse_record
from deepgat.models.registry import SYSTEMS

REQUIRED = ("dataset", "split", "seed", "micro_f1", "loss", "best_epoch", "epochs", "stopped",
            "seconds", "system", "settings", "training")  # fmt: skip
"""The fields of a line of ``deepgat train --json`` that a report uses."""


def read_any_records(path: Path) -> list[Record]:
    """The distinct records of a file, with or without checksums."""
    return list({record["signature"]: record for record in read_records(path, _parse)}.values())


def _parse(line: str) -> Record:
    """A record; one without a signature is given the hash of its text."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DamagedEntry("it is not JSON") from error
    if not isinstance(record, dict):
        raise DamagedEntry("it is not a JSON object")
    if "checksum" in record:
        return parse_record(line)
    for name in REQUIRED:
        if name not in record:
            raise DamagedEntry(f"it has no {name}")
    if record["system"] not in SYSTEMS or "num_layers" not in record["settings"]:
        raise DamagedEntry("its system or its settings are not known")
    signature = hashlib.sha256(line.strip().encode()).hexdigest()[:16]
    return {"measures": {}, **record, "signature": signature}


def with_short_names(records: Iterable[Record]) -> list[Record]:
    """Name a user's graph after its folder, since file names of a report include the dataset.

    The full path stays in ``data``. A name is unique, and never that of a catalogue dataset.
    """
    names: dict[str, str] = {}
    renamed = []
    for record in records:
        data = record.get("data") or {"dataset": record["dataset"], "split": record["split"]}
        path = data["dataset"]
        if Path(path).name != path and path not in names:
            taken = {*ENTRIES, *names.values()}
            stem = Path(path).name or "graph"
            choices = (stem if i == 1 else f"{stem}-{i}" for i in count(1))
            names[path] = next(name for name in choices if name not in taken)
        renamed.append({**record, "data": data, "dataset": names.get(path, path)})
    return renamed
