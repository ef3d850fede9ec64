"""One finished run on disk: a folder with a record and its arrays.

``run.json`` is the record: the spec, the results, the software and the hardware. It has checksums
of itself and of ``arrays.safetensors``, which has the training curve and the arrays that the spec
asks for. A folder whose checksums do not match is damaged and is never used.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from deepgat.errors import UserError
from deepgat.files import to_json, write_through
from deepgat.lab.experiments.schema import FINISHED, DamagedEntry, check, load_object
from deepgat.lab.experiments.spec import SCHEMA, SECTIONS, SIGNATURE_DIGITS, signature_of

Record: TypeAlias = dict[str, Any]

FORMAT = 2
RECORD, ARRAYS = "run.json", "arrays.safetensors"
LARGEST = 2**28
"""Bytes of a record."""
SIGNATURE = re.compile(f"[0-9a-f]{{{SIGNATURE_DIGITS}}}")


def write_entry(folder: Path, record: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Record:
    """Write both files into an empty folder, flushed to disk; returns the record as written."""
    content = save({name: tensor.contiguous().cpu() for name, tensor in arrays.items()})
    described = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    whole = sealed({**record, "format": FORMAT, "arrays": described})
    write_through(folder / ARRAYS, content)
    write_through(folder / RECORD, to_json(whole, indent=1).encode())
    return whole


def sealed(record: Mapping[str, Any]) -> Record:
    """The record after a round trip through JSON, with the checksum of its other values."""
    plain: Record = json.loads(to_json(record))
    plain.pop("checksum", None)
    return {**plain, "checksum": _checksum(plain)}


def read_record(folder: Path, signature: str) -> Record:
    """The record of an entry, checked; its arrays are not."""
    record = parse_record(read_file(folder / RECORD))
    check(record, {"format": int, "arrays": {"sha256": str, "bytes": int}})
    if record["signature"] != signature:
        raise DamagedEntry(f"it holds the run {record['signature']}")
    return record


def read_arrays(folder: Path, signature: str) -> dict[str, Tensor]:
    """The arrays of an entry, checked against its record, which is checked too."""
    record = read_record(folder, signature)
    content = read_file(folder / ARRAYS, record["arrays"]["bytes"])
    if hashlib.sha256(content).hexdigest() != record["arrays"]["sha256"]:
        raise DamagedEntry(f"{ARRAYS} was changed after it was written")
    try:
        return load(content)
    except SafetensorError as error:
        raise DamagedEntry(f"{ARRAYS} is not a file of arrays") from error


def parse_record(text: str | bytes) -> Record:
    """A record from its JSON text; raises :class:`DamagedEntry` if it is not a valid record."""
    record = load_object(text)
    check(record, {"signature": str, "checksum": str, "schema?": int})
    seal = record.pop("checksum")
    if seal != _checksum(record):
        raise DamagedEntry(f"{RECORD} was changed after it was written")
    signature, schema = record["signature"], record.get("schema", 1)
    if schema != SCHEMA:
        raise UserError(
            f"the run {signature} has schema {schema}, but this deepgat reads schema {SCHEMA}: "
            "repeat the run"
        )
    check(record, FINISHED)
    check_signature(record)
    return {**record, "checksum": seal}


def check_signature(record: Mapping[str, Any]) -> None:
    """Raise :class:`DamagedEntry` unless the signature is that of the settings."""
    if record["signature"] != signature_of(spec_values(record)):
        raise DamagedEntry("its signature is not that of its settings")


def spec_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a record as plain values, as in its signature."""
    values = {section: record[section] for section in SECTIONS}
    values["training"] = {k: v for k, v in record["training"].items() if k != "device"}
    return values


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """The content of a regular file; nothing else is opened, since reading it might never end."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise DamagedEntry(f"{path.name} is not a regular file")
        if found.st_size > most:
            raise DamagedEntry(f"{path.name} is larger than what was written")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedEntry(f"it has no file {path.name}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error


def _checksum(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
