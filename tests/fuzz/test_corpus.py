"""Files that once broke a reader, or were made to: each is refused in a sentence, or read."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from test_fuzz import attempt

from deepgat.errors import MOST_SAID, UserError

from changes import Files
from readers import (
    ARRAYS,
    CONFIG,
    EDGES,
    LIST,
    NODES,
    READERS,
    _networkx_seeds,
    a_record,
    cache_bytes,
    line_of,
    model_bytes,
    npy_bytes,
    npz_bytes,
    parquet_bytes,
    partition_bytes,
    progress_bytes,
    resealed,
    store_bytes,
)

READER = {reader.name: reader for reader in READERS}


def npz(**changed: object) -> Files:
    return {"g.npz": npz_bytes({**ARRAYS, **changed})}


def model(text: bytes | None = None, weights: bytes | str | None = None) -> Files:
    files: Files = {f"m/{name}": content for name, content in model_bytes().items()}
    files |= {} if text is None else {"m/model.json": text}
    return files | ({} if weights is None else {"m/model.safetensors": weights})


def described(old: bytes, new: bytes) -> Files:
    text = model_bytes()["model.json"]
    assert old in text
    return model(text.replace(old, new))


def zip_bomb() -> bytes:
    """An array of 4 GiB of zeros in 4 MB, said to be one."""
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("adj_data.npy", bytes(2**20))
    raw = room.getvalue()
    return raw.replace((2**20).to_bytes(4, "little"), (2**32 - 2).to_bytes(4, "little"))


def gzip_bomb(content: bytes = b"\0") -> bytes:
    """A hundred MiB in 100 kB."""
    return gzip.compress(content * 2**20) * 100


def timestamps() -> Files:
    nodes = pa.table(
        {"id": ["a", "b"], "label": ["u", "v"], "t": pa.array([1, 2], pa.timestamp("s"))}
    )
    edges = pa.table({"source": ["a"], "target": ["b"]})
    return {"g/nodes.parquet": parquet_bytes(nodes), "g/edges.parquet": parquet_bytes(edges)}


def tar(name: str = "../evil", kind: bytes = tarfile.REGTYPE, link: str = "") -> Files:
    room = io.BytesIO(store_bytes()["s.tar"])
    with tarfile.open(fileobj=room, mode="a") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)
    return {"s.tar": room.getvalue()}


def tar_bomb() -> Files:
    room, member = io.BytesIO(), tarfile.TarInfo("x")
    with tarfile.open(fileobj=room, mode="w:gz") as archive:
        member.size = 2**40
        archive.addfile(member)
    return {"s.tar": room.getvalue()}


def record(**changed: object) -> Files:
    whole = {k: v for k, v in {**a_record(), **changed}.items() if v is not ...}
    return {"r.jsonl": line_of(a_record()) + line_of(resealed(whole))}


DEEP, LONG = b"[" * 100_000, b"9" * 5000
ENTRY = f"ab/{'ab' * 8}/run.json"
CASES: dict[str, tuple[str, Callable[[], Files]]] = {
    "npz of falling unsigned pointers": (
        "npz", lambda: npz(adj_indptr=np.array([0, 3, 2, 3, 4], np.uint64))),
    "npz of an endless matrix": ("npz", lambda: npz(adj_shape=np.array([4, np.inf]))),
    "npz of complex features": ("npz", lambda: npz(attr_data=np.array([1, 1, 1, 1j]))),
    "npz of few class names": ("npz", lambda: npz(class_names=np.array(["a"]))),
    "features without a column": (
        "edge-list", lambda: {"g.txt": LIST, "nodes.npy": npy_bytes(np.zeros((4, 0)))}),
    "npz that is a bomb": ("npz", lambda: {"g.npz": zip_bomb()}),
    "Parquet timestamps": ("parquet", timestamps),
    "gzip as CSV": (
        "csv", lambda: {"g/nodes.csv": gzip_bomb(), "g/edges.csv": EDGES}),
    "a CSV called gz": ("edge-list", lambda: {"g.csv.gz": gzip_bomb()}),
    "GraphML of many tags": (
        "graphml", lambda: {"g.graphml": b"<graphml>" + b"<node>" * 100_000}),
    "GML of many brackets": ("gml", lambda: {"g.gml": b"graph " + DEEP}),
    "model nested deep": ("model.json", lambda: model(DEEP)),
    "model of ten thousand layers": (
        "model.json", lambda: described(b'"num_layers": 2', b'"num_layers": 10000')),
    "model of a long number": ("model.json", lambda: model(b'{"format": ' + LONG + b"}")),
    "model of a million layers": (
        "model.json", lambda: described(b'"num_layers": 2', b'"num_layers": 1000000')),
    "model with numbers as class names": (
        "model.json", lambda: described(b'"class_names": []', b'"class_names": [1, 2, 3]')),
    "model of a format of two lines": (
        "model.json", lambda: described(b'"format": 2', b'"format": "a\\nb"')),
    "model with a long name": (
        "model.json", lambda: described(b'"num_layers"', b'"' + b"x" * 5000 + b'"')),
    "weights that are a pipe": ("safetensors", lambda: model(weights="a pipe")),
    "weights without end": ("safetensors", lambda: model(weights="a device")),
    "weights of a huge header": ("safetensors", lambda: model(weights=b"\xff" * 100)),
    "progress of strange rows": (
        "progress", lambda: {"p": progress_bytes().replace(b"[[1, 0.5", b"[[[[[[[[")}),
    "progress that is a pipe": ("progress", lambda: {"p": "a pipe"}),
    "a record without scores": ("records", lambda: record(micro_f1=...)),
    "a record without format": ("records", lambda: record(schema=...)),
    "a record nested deep": ("records", lambda: {"r.jsonl": DEEP}),
    "a record of a long number": ("records", lambda: {"r.jsonl": b'{"a": ' + LONG + b"}"}),
    "records that are a bomb": ("records", lambda: {"r.jsonl.gz": gzip_bomb()}),
    "records of empty lines": ("records", lambda: {"r.jsonl.gz": gzip_bomb(b"\n")}),
    "records that are a pipe": ("records", lambda: {"r.jsonl": "a pipe"}),
    "tar that leaves its folder": ("tar", tar),
    "tar with a link": ("tar", lambda: tar(ENTRY, tarfile.SYMTYPE, "/etc/passwd")),
    "tar whose mark is a long link": ("tar", lambda: tar("store.json", tarfile.SYMTYPE, "x" * 300)),
    "tar with a hard link": ("tar", lambda: tar(ENTRY, tarfile.LNKTYPE, "/etc/passwd")),
    "tar with a device": ("tar", lambda: tar(ENTRY, tarfile.CHRTYPE)),
    "tar with a pipe": ("tar", lambda: tar(ENTRY, tarfile.FIFOTYPE)),
    "tar that is a bomb": ("tar", tar_bomb),
    "tar that is a pipe": ("tar", lambda: {"s.tar": "a pipe"}),
    "tar with a link to nothing": ("tar", lambda: tar("x", tarfile.LNKTYPE, "y")),
    "no tar": ("tar", lambda: {"s.tar": b"\0/./@" + bytes(2000)}),
    "settings nested deep": ("toml", lambda: {"c.toml": b"a = " + DEEP}),
    "settings of a long number": ("toml", lambda: {"c.toml": b"a = " + LONG}),
    "settings of tables in tables": (
        "toml", lambda: {"c.toml": CONFIG + b"settings" + b".gs" * 2000 + b" = [1]"}),
    "settings that are a pipe": ("toml", lambda: {"c.toml": "a pipe"}),
    "a partition nested deep": (
        "partition", lambda: {**partition_bytes(), "dense/partition.json": DEEP}),
    "a partition of strange pointers": (
        "partition", lambda: {**partition_bytes(),
                              "sparse/parts/0/0/x_ptr.npy": npy_bytes(np.arange(31) * 10**9)}),
    "a partition of strange nodes": (
        "partition", lambda: {**partition_bytes(),
                              "dense/parts/0/0/ids.npy": npy_bytes(np.full(53, 10**9))}),
}  # fmt: skip
"""What is wrong → the reader, and the files."""
SOUND: dict[str, tuple[str, Callable[[], Files]]] = {
    "csv": ("csv", lambda: {"g/nodes.csv": NODES, "g/edges.csv": EDGES}),
    "edge list": ("edge-list", lambda: {"g.txt": LIST, "nodes.npy": npy_bytes(np.eye(4))}),
    "a line of blanks": ("edge-list", lambda: {"g.txt": b"1\t2\n\t\n2\t3\n"}),
    "npz": ("npz", npz),
    "npz of half precision": ("npz", lambda: npz(adj_data=np.ones(4, np.float16))),
    "npz of bytes as numbers of nodes": ("npz", lambda: npz(idx_train=np.array([0, 1], np.uint8))),
    "graphml": ("graphml", lambda: dict(_networkx_seeds()[:1])),
    "a column whose name begins with a break": (
        "graphml",
        lambda: {"g.graphml": _networkx_seeds()[0][1].replace(b'"flag"', '"\u2028flag"'.encode())},
    ),
    "gml": ("gml", lambda: dict(_networkx_seeds()[1:])),
    "model": ("model.json", model),
    "progress": ("progress", lambda: {"p": progress_bytes()}),
    "records": ("records", record),
    "tar": ("tar", lambda: {"s.tar": store_bytes()["s.tar"]}),
    "tgz": ("tar", lambda: {"s.tar": store_bytes()["s.tgz"]}),
    "store": ("store", lambda: dict(store_bytes())),
    "toml": ("toml", lambda: {"c.toml": CONFIG}),
    "partition": ("partition", lambda: dict(partition_bytes())),
    "cache": ("cache", lambda: {"c": cache_bytes()}),
}
"""What every example begins with, and files that were refused or broke a reader."""


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_refused(name, tmp_path):
    reader, files = CASES[name]
    assert not attempt(READER[reader], files(), tmp_path / "files")


@pytest.mark.parametrize("name", SOUND)
def test_what_is_right_is_read(name, tmp_path):
    reader, files = SOUND[name]
    assert attempt(READER[reader], files(), tmp_path / "files")


def test_a_sentence_that_quotes_a_file_is_cut():
    assert len(str(UserError("x" * 10**6))) == MOST_SAID
