"""Every reader of files that may come from a stranger, the files, and what must hold of the result.

``read`` returns when what was read is sound and is what the files say; it raises a
:class:`~deepgat.errors.UserError` when the files are refused. Anything else is a bug.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import json
import math
import tarfile
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pyarrow as pa
import torch
from hypothesis import strategies as st
from pyarrow import parquet

from deepgat.data import load_graph
from deepgat.data.catalogue.cache import DamagedFile, read_graphs, write_graphs
from deepgat.data.dataset import NodeDataset
from deepgat.data.grown_graph import GrownGraph
from deepgat.data.kept_folder import Expected, read_kept, write_kept
from deepgat.distributed.partition_folder import read_part, write_partition
from deepgat.errors import UserError
from deepgat.lab.experiments import Store, export_runs, import_runs, read_records
from deepgat.lab.experiments.spec import read_specs, signature_of
from deepgat.lab.experiments.store import MARKER
from deepgat.lab.experiments.store_entry import RECORD, sealed, spec_values
from deepgat.lab.report.records import read_any_records, with_short_names
from deepgat.model_folder import (
    load_run,
    read_calibration,
    read_search,
    save_run,
    saved_record,
)
from deepgat.models import build_network, find_system
from deepgat.training.receptive_field import field_outputs
from deepgat.training.recipes import recipe
from deepgat.training.resume import Epoch, Progress
from deepgat.training.run import train_once
from tiny import tiny_dataset

from changes import (
    Files,
    altered,
    damaged,
    header_of,
    json_bytes,
    misplaced,
    spoiled,
    with_header,
)
from jobs import arrays_of, record_of, spec


class Reader(NamedTuple):
    name: str
    files: Callable[[], st.SearchStrategy[Files]]
    read: Callable[[Path], object]


def _folder_bytes(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ------------------------------------------------------------------------------------------ graphs

NODES = b"""id,label,split,age,town
ann,red,train,20,Ashford
bob,blue,train,40,Birch
"c, d",red,val,60,Ashford
dan,blue,val,80,
=eve,red,test,30,Birch
fay,,,50,Ashford
"""
EDGES = b"""source,target,weight,trust
ann,bob,2,0.5
bob,"c, d",1,0.25
"c, d",ann,1,0
dan,=eve,3,1
"""
LIST = b"# friends\n0 1 2\n1 2 0.5\n2\t0 1\n3 0 1\n"


def sound(data: NodeDataset) -> NodeDataset:
    """Whether a dataset is one: what models, which trust it, rely on."""
    data.check()
    data.check_labels()
    for graph in data.graphs:
        n, index = graph.num_nodes, graph.edge_index
        assert graph.x.shape == (n, data.num_features)
        assert index.dtype == torch.int64
        assert not index.numel() or 0 <= int(index.min()) <= int(index.max()) < n
        assert not data.node_ids or len(set(data.node_ids)) == n
        assert len(data.class_names) in (0, data.num_classes)
        assert all(isinstance(name, str) for name in (*data.node_ids, *data.class_names))
        assert "".join((*data.node_ids, *data.class_names, *data.feature_names)).encode()
        assert graph.y.min() >= -1
        assert int(graph.y.max()) < data.num_classes
        if graph.edge_weight is not None:
            assert graph.edge_weight.shape == index.shape[1:]
            assert (graph.edge_weight >= 0).all()
            assert graph.edge_weight.isfinite().all()
        if graph.edge_attr is not None:
            assert len(graph.edge_attr) == index.shape[1]
            assert graph.edge_attr.isfinite().all()
    return data


def edges_of(data: NodeDataset) -> set[tuple[int, int]]:
    return set(map(tuple, data.graph.edge_index.t().tolist()))


def both_ways(edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    return edges | {(v, u) for u, v in edges}


def read_tables(folder: Path) -> None:
    data = sound(load_graph(folder / "g"))
    if (folder / "said.json").exists():
        said = json.loads((folder / "said.json").read_text())
        assert list(data.node_ids) == said["ids"]
        assert edges_of(data) == both_ways(set(map(tuple, said["edges"])))


WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"),
    min_size=1,
    max_size=8,
)


@st.composite
def written_tables(draw: st.DrawFn) -> Files:
    """Tables of any ids, with what they say."""
    ids = draw(
        st.lists(WORDS.map(lambda t: f"{t}.".strip(" \t")), min_size=2, max_size=8, unique=True)
    )
    places = st.integers(0, len(ids) - 1)
    edges = draw(st.lists(st.tuples(places, places), min_size=1, max_size=12))
    numbers = st.floats(-1e30, 1e30) | st.integers(-(10**20), 10**20)
    nodes = [["id", "label", "split", "x"]]
    for number, text in enumerate(ids):
        part = (
            ("train", "val", "test")[number] if number < 3 else draw(st.sampled_from(("train", "")))
        )
        nodes.append([text, draw(st.sampled_from("ab")), part, str(draw(numbers))])
    pairs = [["source", "target"], *([ids[u], ids[v]] for u, v in edges)]
    found: Files = {"said.json": json_bytes({"ids": ids, "edges": edges})}
    for name, rows in (("nodes", nodes), ("edges", pairs)):
        text = io.StringIO(newline="")
        how = {"delimiter": draw(st.sampled_from(",;\t")), "quoting": draw(st.sampled_from((0, 1)))}
        csv.writer(text, lineterminator=draw(st.sampled_from(("\n", "\r\n"))), **how).writerows(
            rows
        )
        found[f"g/{name}.csv"] = text.getvalue().encode()
    return found


def csv_files() -> st.SearchStrategy[Files]:
    files: Files = {"g/nodes.csv": NODES, "g/edges.csv": EDGES}
    return damaged(files) | written_tables() | misplaced(files)


def read_list(folder: Path) -> None:
    path = next((p for p in folder.iterdir() if p.name != "nodes.npy"), folder / "g.txt")
    with_nodes = {"nodes": str(folder / "nodes.npy")} if (folder / "nodes.npy").is_file() else {}
    try:
        sound(load_graph(path, structure="degree", **with_nodes))
    except UserError as error:
        if "has no labels" not in str(error):
            raise


def npy_bytes(array: np.ndarray) -> bytes:
    room = io.BytesIO()
    np.save(room, array)
    return room.getvalue()


def list_files() -> st.SearchStrategy[Files]:
    names = st.sampled_from(("g.txt", "g.csv", "g.tsv", "g.edges"))
    seeds = [LIST, b"a,b\nb,c\n", b"source;target\n1;2\n", b"1\t2\t0.5\n"]
    lists = st.builds(lambda name, content: {name: content}, names, spoiled(seeds))
    return lists | damaged({"g.txt": LIST, "nodes.npy": npy_bytes(np.eye(4))})


ARRAYS = {
    "adj_data": np.array([1.0, 2, 1, 1]),
    "adj_indices": np.array([1, 2, 0, 0]),
    "adj_indptr": np.array([0, 1, 2, 3, 4]),
    "adj_shape": np.array([4, 4]),
    "attr_data": np.array([1.0, 1, 2, 1]),
    "attr_indices": np.array([0, 1, 2, 0]),
    "attr_indptr": np.array([0, 1, 2, 3, 4]),
    "attr_shape": np.array([4, 3]),
    "labels": np.array([0, 1, 0, 1]),
    "class_names": np.array(["a", "b"]),
    "node_names": np.array(["p", "q", "r", "s"]),
    "idx_train": np.array([0, 1]),
    "idx_val": np.array([2]),
    "idx_test": np.array([3]),
}
KINDS = ("int64", "int32", "uint8", "uint64", "int8", "float32", "float16", "complex64", "bool",
         "U3", "S2", "datetime64[s]", ">i8", "longdouble", "V4")  # fmt: skip


@st.composite
def odd_arrays(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """The arrays of a graph, some of another type, shape or content."""
    arrays = dict(ARRAYS)
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(ARRAYS)))
        array = np.array(arrays.get(name, ARRAYS[name]))
        how = draw(st.sampled_from(("type", "value", "shape", "short", "long", "gone", "matrix")))
        if how == "type":
            try:
                array = array.astype(draw(st.sampled_from(KINDS)))
            except (ValueError, TypeError):
                continue
        elif how == "value" and array.dtype.kind in "iuf" and array.size:
            values = (-1, 0, 1, 2, 3, 7, 2**31, 2**62, -(2**62), np.nan, np.inf, 1e300, 0.5)
            value = draw(st.sampled_from(values))
            array = array.astype(np.float64 if value != value or value % 1 else array.dtype)
            if (
                array.dtype.kind in "iu"
                and not np.iinfo(array.dtype).min <= value <= np.iinfo(array.dtype).max
            ):
                continue
            with np.errstate(all="ignore"):
                array.flat[draw(st.integers(0, array.size - 1))] = value
        elif how == "shape":
            shapes = ((-1, 1), (1, -1), (), (0,), (2, -1))
            try:
                array = array.reshape(draw(st.sampled_from(shapes)))
            except ValueError:
                array = array.reshape(-1)[:0]
        elif how in ("short", "long") and array.ndim == 1:
            array = array[:-1] if how == "short" else np.concatenate([array, array])
        elif how == "gone":
            arrays.pop(name, None)
            continue
        elif how == "matrix":
            name, array = (
                "attr_matrix",
                np.ones(draw(st.sampled_from(((4, 2), (4, 0), (3, 2), (4,))))),
            )
            for part in ("data", "indices", "indptr", "shape"):
                arrays.pop(f"attr_{part}", None)
        arrays[name] = array
    return arrays


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    room = io.BytesIO()
    np.savez(room, **arrays)
    return room.getvalue()


def npz_files() -> st.SearchStrategy[Files]:
    made = odd_arrays().map(lambda arrays: {"g.npz": npz_bytes(arrays)})
    files: Files = {"g.npz": npz_bytes(ARRAYS)}
    return made | made | damaged(files) | misplaced(files)


def read_npz_file(folder: Path) -> None:
    data = sound(load_graph(folder / "g.npz"))
    raw = (folder / "g.npz").read_bytes()
    raw = raw[raw.index(b"PK\x03\x04") :]  # an archive may begin later, which numpy does not know
    with np.load(io.BytesIO(raw)) as arrays:
        assert len(data.node_ids) == arrays["adj_shape"][0]
        ptr, ends, weight = (arrays[f"adj_{part}"] for part in ("indptr", "indices", "data"))
        said = {
            (row, int(ends[at]))
            for row, (begin, end) in enumerate(itertools.pairwise(map(int, ptr)))
            for at in range(begin, end)
            if weight[at] != 0
        }
    assert edges_of(data) == both_ways(said)


COLUMNS: dict[str, pa.DataType] = {
    "bool": pa.bool_(), "int8": pa.int8(), "uint64": pa.uint64(), "half": pa.float16(),
    "double": pa.float64(), "text": pa.string(), "large text": pa.large_string(),
    "bytes": pa.binary(), "day": pa.date32(), "stamp": pa.timestamp("us", "UTC"),
    "span": pa.duration("ns"), "time": pa.time64("us"), "money": pa.decimal128(30, 2),
    "list": pa.list_(pa.int8()), "null": pa.null(), "word": pa.dictionary(pa.int8(), pa.string()),
    "fixed": pa.binary(3), "pair": pa.struct([("a", pa.int8())]),
}  # fmt: skip
CELLS: dict[str, Any] = {
    "bool": True, "int8": 3, "uint64": 2**64 - 1, "half": np.float16(0.5), "double": 1e39,
    "text": "a", "large text": "b", "bytes": b"\xff", "day": 3, "stamp": 5, "span": 7, "time": 9,
    "money": 11, "list": [1], "null": None, "word": "w", "fixed": b"abc", "pair": {"a": 1},
}  # fmt: skip


def parquet_bytes(table: pa.Table) -> bytes:
    room = io.BytesIO()
    parquet.write_table(table, room)
    return room.getvalue()


@st.composite
def odd_tables(draw: st.DrawFn) -> Files:
    """Parquet files with a column or two of any type."""
    nodes = {
        "id": pa.array(["a", "b", "c"]),
        "label": pa.array(["u", "v", "u"]),
        "split": pa.array(["train", "val", "test"]),
        "x": pa.array([1.0, 2, 3]),
    }
    edges = {
        "source": pa.array(["a", "b"]),
        "target": pa.array(["b", "c"]),
        "w": pa.array([1.0, 2]),
    }
    for _ in range(draw(st.integers(1, 2))):
        columns, rows = draw(st.sampled_from(((nodes, 3), (edges, 2))))
        name = draw(st.sampled_from([*columns, "more", "weight"]))
        kind = draw(st.sampled_from(sorted(COLUMNS)))
        cells = [draw(st.sampled_from((CELLS[kind], None))) for _ in range(rows)]
        columns[name] = pa.array(cells, COLUMNS[kind])
    return {
        "g/nodes.parquet": parquet_bytes(pa.table(nodes)),
        "g/edges.parquet": parquet_bytes(pa.table(edges)),
    }


def parquet_files() -> st.SearchStrategy[Files]:
    nodes = {"id": [1, 2, 3], "label": ["u", "v", "u"], "split": ["train", "val", "test"],
             "x": [1.0, 2, 3]}  # fmt: skip
    files: Files = {
        "g/nodes.parquet": parquet_bytes(pa.table(nodes)),
        "g/edges.parquet": parquet_bytes(pa.table({"source": [1, 2], "target": [2, 3]})),
    }
    return damaged(files) | odd_tables() | misplaced(files)


def _networkx_seeds() -> list[tuple[str, bytes]]:
    graph = nx.Graph([(0, 1), (1, 2), (2, 3)])
    for node in graph:
        part = ("train", "train", "val", "test")[node]
        graph.nodes[node].update(kind="ab"[node % 2], x=node / 2, flag=True, split=part)
    found = []
    for name, save in (("g.graphml", nx.write_graphml), ("g.gml", nx.write_gml)):
        room = io.BytesIO()
        save(graph, room)
        found.append((name, room.getvalue()))
    return found


def networkx_files(number: int) -> st.SearchStrategy[Files]:
    name, content = _networkx_seeds()[number]
    return damaged({name: content}) | misplaced({name: content})


def read_networkx(folder: Path) -> None:
    sound(load_graph(next(folder.iterdir(), folder / "g.gml"), label="kind"))


# ------------------------------------------------------------------------------------------ models


@cache
def model_bytes() -> dict[str, bytes]:
    data = tiny_dataset()
    small = recipe("deepgat", preset="authors", training={"epochs": 1, "device": "cpu"}, heads=2,
                   hidden_channels=4, num_layers=2)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        return _folder_bytes(save_run(Path(folder) / "m", train_once(data, small, seed=0), data))


def model_folder(description: Any, weights: bytes) -> Files:
    """A folder whose checksum is right, as a stranger's would be."""
    if isinstance(description, dict) and "weights_sha256" in description:
        description["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    return {
        **{f"m/{name}": content for name, content in model_bytes().items()},
        "m/model.json": json_bytes(description),
        "m/model.safetensors": weights,
    }


def described_files() -> st.SearchStrategy[Files]:
    files: Files = {f"m/{name}": content for name, content in model_bytes().items()}
    text, weights = model_bytes()["model.json"], model_bytes()["model.safetensors"]
    searched = {"auto": {"leaderboard": [{"model": "gcn", "val": 0.5}], "request": {}}}
    values = altered(json.loads(text) | searched).map(lambda value: model_folder(value, weights))
    texts = spoiled([text]).map(lambda content: {**files, "m/model.json": content})
    return values | values | texts | misplaced(files)


def calibration_files() -> st.SearchStrategy[Files]:
    files: Files = {f"m/{name}": content for name, content in model_bytes().items()}
    text = model_bytes()["calibration.json"]
    values = altered(json.loads(text)).map(json_bytes)
    return (values | spoiled([text])).map(lambda raw: {**files, "m/calibration.json": raw})


def weights_files() -> st.SearchStrategy[Files]:
    text, weights = model_bytes()["model.json"], model_bytes()["model.safetensors"]
    header, rest = header_of(weights)
    headers = altered(header).map(lambda value: with_header(value, rest))
    return (headers | spoiled([weights])).map(lambda raw: model_folder(json.loads(text), raw))


def read_model(folder: Path) -> None:
    model, card = load_run(folder / "m")
    read_search(folder / "m")
    calibration = read_calibration(folder / "m", card.num_classes)
    assert 0 < calibration.temperature < math.inf
    assert all(bool(((each >= 0) & (each <= 1)).all()) for each in calibration.scores)
    assert all(tensor.device.type == "cpu" for tensor in model.state_dict().values())
    saved_record(folder / "m", card)
    graph = tiny_dataset().graph
    if card.num_features == graph.num_features and not card.edge_features:
        with torch.no_grad():
            assert model(graph.x, graph.edge_index).shape == (60, card.num_classes)


@cache
def progress_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p"
        tensors = {"model.a": torch.arange(4.0), "rng": torch.get_rng_state()}
        Progress(path, 1, "key").write(tensors, [Epoch(1, 0.5, 0.5, 0.5, 1)], 0.5)
        return path.read_bytes()


def progress_files() -> st.SearchStrategy[Files]:
    header, rest = header_of(progress_bytes())
    history = altered(json.loads(header["__metadata__"]["history"])).map(
        lambda rows: {
            **header,
            "__metadata__": {**header["__metadata__"], "history": json.dumps(rows)},
        }
    )
    made = (history | altered(header)).map(lambda value: {"p": with_header(value, rest)})
    files: Files = {"p": progress_bytes()}
    return made | damaged(files) | misplaced(files)


def read_progress(folder: Path) -> None:
    saved = Progress(folder / "p", 1, "key", resume=True).read()
    assert saved is None or all(isinstance(epoch, Epoch) for epoch in saved.history)


# ----------------------------------------------------------------------------- records and stores


@cache
def store_bytes() -> dict[str, bytes]:
    """A store of two runs, and the same as a tar file."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "s")
        for seed in (0, 1):
            wanted = spec(seed=seed)
            with store.claim(wanted.signature) as mine:
                assert mine is not None
                store.add(mine, record_of(wanted), arrays_of(wanted))
        export_runs(store, Path(folder) / "s.tar")
        export_runs(store, Path(folder) / "s.tgz")
        return _folder_bytes(Path(folder))


def a_record() -> dict[str, Any]:
    content = next(v for k, v in store_bytes().items() if k.endswith(RECORD))
    found: dict[str, Any] = json.loads(content)
    return found


def resealed(record: Any) -> Any:
    """A record whose signature and checksum are right, as a stranger's would be."""
    try:
        record["signature"] = signature_of(spec_values(record))
        return sealed(record)
    except Exception:
        return record


def line_of(value: Any) -> bytes:
    return json_bytes(value) + b"\n"


def record_files() -> st.SearchStrategy[Files]:
    good = line_of(a_record())
    plain = {k: v for k, v in a_record().items() if k not in ("checksum", "signature", "arrays")}
    lines = (altered(a_record()).map(resealed) | altered(plain)).map(line_of) | spoiled([good])
    texts = st.lists(lines, min_size=1, max_size=3).map(lambda some: b"".join([good, *some]))
    packed = texts.map(gzip.compress) | spoiled([gzip.compress(good)])
    files: Files = {"r.jsonl": good}
    return (
        texts.map(lambda text: {"r.jsonl": text})
        | packed.map(lambda raw: {"r.jsonl.gz": raw})
        | misplaced(files)
    )


def read_record_lines(folder: Path) -> None:
    path = next(iter(folder.iterdir()), folder / "r.jsonl")
    told = None
    try:
        strict = read_records(path) if not path.is_dir() else []
    except UserError as error:
        strict, told = [], error
    records = read_any_records(path)
    assert {r["signature"] for r in strict} <= {r["signature"] for r in records}
    for record in with_short_names(records):
        assert record["dataset"].isprintable()
        assert 0 < len(record["dataset"]) <= 60
    if told is not None:
        raise told


MEMBERS = ("../evil", "/evil", "store.json", "ab", "ab/../../evil", "a\0b", "x" * 300,
           "./store.json", f"ab/{'ab' * 8}/run.json", f"ab/{'ab' * 8}", "tmp",
           "claims/x")  # fmt: skip
TYPES = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE,
         tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.GNUTYPE_SPARSE, b"Z")  # fmt: skip


@st.composite
def odd_tar(draw: st.DrawFn) -> bytes:
    """A tar file of a store, with members of any name and type."""
    room = io.BytesIO()
    inner = {k[2:]: v for k, v in store_bytes().items() if k.startswith("s/")}
    inner = {k: v for k, v in inner.items() if k == MARKER or "/" in k}
    with tarfile.open(fileobj=room, mode=draw(st.sampled_from(("w", "w:gz", "w:xz")))) as tar:
        for name, content in inner.items():
            if draw(st.integers(0, 9)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        for _ in range(draw(st.integers(0, 3))):
            member = tarfile.TarInfo(draw(st.sampled_from((*MEMBERS, *inner))))
            member.type = draw(st.sampled_from(TYPES))
            member.linkname = draw(st.sampled_from(("", "../..", "/etc/passwd", *MEMBERS, *inner)))
            member.mode = draw(st.sampled_from((0o644, 0, 0o7777)))
            member.size = draw(st.sampled_from((0, 0, 1, 2**33)))
            member.mtime = draw(st.sampled_from((0, 2**33, 1e300)))
            tar.addfile(member, io.BytesIO(b"x") if member.size == 1 else None)
    return room.getvalue()


def tar_files() -> st.SearchStrategy[Files]:
    seeds = [v for k, v in store_bytes().items() if k.startswith("s.")]
    raw = spoiled(seeds) | odd_tar()
    return raw.map(lambda content: {"s.tar": content}) | misplaced({"s.tar": seeds[0]})


def read_tar(folder: Path) -> None:
    before = sorted(folder.iterdir())
    store = Store(folder / "store")
    try:
        if not (folder / "s.tar").is_dir():
            result = import_runs(store, folder / "s.tar")
            assert result.added == store.signatures()
    finally:
        assert sorted(folder.iterdir()) == sorted([*before, store.folder])
        assert not list((store.folder / "tmp").iterdir())
        assert store.verify()[1] == {}
        list(store.records())


def store_files() -> st.SearchStrategy[Files]:
    inside = {k: v for k, v in store_bytes().items() if k.startswith("s/")}
    names = [name for name in inside if name.endswith(RECORD)]
    records = st.builds(
        lambda name, record: {**inside, name: json_bytes(resealed(record))},
        st.sampled_from(names),
        altered(a_record()),
    )
    return records | damaged(inside) | misplaced(inside)


def read_store(folder: Path) -> None:
    store = Store(folder / "s", create=False)
    found = list(store.records())
    with_short_names(found)
    for record in found:
        store.arrays(record["signature"])
    store.failures()
    assert len(list(store.records())) <= len(found)  # the second time too


# ------------------------------------------------------------------------------- settings, caches

CONFIG = b"""# A comment
system = "gcnii"

[data]
dataset = "cora"
split = "public"

[settings]
num_layers = 4
hidden_channels = 8
dropout = 0.5

[training]
lr = 0.01
epochs = 5

[analysis]
measures = ["layer-scores"]

[sweep]
training.seed = [0, 1, 2]
settings.num_layers = [2, 4]

[published]
score = 80.5
source = "them"
"""
TOML = ("1", "-1", "0.5", "nan", "inf", "true", '""', '"x"', "[]", "[1]", '["a"]', "{}", "{a = 1}",
        "1979-05-27", "07:32:00", "9" * 5000, "10000000000000000000000", "[" * 2000, "1e400",
        '"\\u0000"', '"\\ud800"', "[[1], [2]]", "[" + "1," * 500 + "]", "0x7fffffffffffffffff",
        "2", "100000", '"auto"')  # fmt: skip


@st.composite
def odd_config(draw: st.DrawFn) -> bytes:
    """The settings of a run with some values replaced, and lines moved."""
    lines = CONFIG.decode().splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        name, equals, _ = lines[at].partition(" = ")
        if equals:
            lines[at] = f"{name} = {draw(st.sampled_from(TOML))}"
        elif draw(st.booleans()):
            lines[at] = draw(st.sampled_from(lines))
    return "\n".join(lines).encode()


def config_files() -> st.SearchStrategy[Files]:
    made = odd_config().map(lambda text: {"c.toml": text})
    files: Files = {"c.toml": CONFIG}
    return made | made | damaged(files) | misplaced(files)


def read_config_file(folder: Path) -> None:
    runs = read_specs(folder / "c.toml")
    assert runs
    for run in runs[:3]:
        assert signature_of(run.to_dict()) == run.signature
        assert tomllib.loads(run.to_toml())["system"] == run.system


@cache
def partition_bytes() -> dict[str, bytes]:
    found = {}
    for name, sparse in (("dense", False), ("sparse", True)):
        with tempfile.TemporaryDirectory() as folder:
            write_partition(Path(folder) / "p", tiny_dataset(sparse=sparse), 2)
            inner = _folder_bytes(Path(folder) / "p")
            found |= {f"{name}/{path}": content for path, content in inner.items()}
    return found


@st.composite
def odd_array(draw: st.DrawFn, files: dict[str, bytes]) -> Files:
    """Files one of whose arrays has other numbers, another type or another length."""
    name = draw(st.sampled_from([n for n in sorted(files) if n.endswith(".npy")]))
    array = np.load(io.BytesIO(files[name]))
    how = draw(st.sampled_from(("value", "type", "short", "long", "shape")))
    if how == "value" and array.size:
        number = np.array(draw(st.sampled_from((-1, 0, 1, 7, 2**31 - 1))))
        array.flat[draw(st.integers(0, array.size - 1))] = number.astype(array.dtype)  # may wrap
    elif how == "type":
        array = array.astype(draw(st.sampled_from(("int32", "float64", "bool", "uint8", "U3"))))
    elif how in ("short", "long"):
        array = array[:-1] if how == "short" else np.concatenate([array, array])
    else:
        array = array.reshape(draw(st.sampled_from(((-1, 1), (1, -1), (-1,)))))
    return {**files, name: npy_bytes(array)}


def partition_files() -> st.SearchStrategy[Files]:
    files: Files = dict(partition_bytes())
    text = partition_bytes()["dense/partition.json"]
    described = altered(json.loads(text)).map(
        lambda value: {**files, "dense/partition.json": json_bytes(value)}
    )
    odd = odd_array(partition_bytes())
    return described | odd | odd | damaged(files) | misplaced(files)


def read_parts(folder: Path) -> None:
    for name in ("dense", "sparse"):
        for number in (0, 1):
            part = read_part(folder / name, number, 2)
            for graph in part.graphs:
                index = graph.edge_index
                assert 0 <= int(index.min()) <= int(index.max()) < len(graph.ids) <= graph.num_nodes
                assert graph.x.shape == (graph.own, part.num_features)
                assert len(graph.y) == len(graph.train_mask) == graph.own
                graph.x.to_dense().sum()


KEPT = {"dense": tiny_dataset(24), "sparse": tiny_dataset(24, sparse=True)}


@cache
def kept_bytes() -> dict[str, bytes]:
    """Graphs that models keep: one with ids and weights, one sparse."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, data in KEPT.items():
            if name == "dense":
                graph = data.graph.clone()
                graph.edge_weight = torch.ones(graph.num_edges)
                data = replace(data, graphs=(graph,), node_ids=tuple(f"n{k}" for k in range(24)))
            write_kept(Path(folder) / name, data)
            inner = _folder_bytes(Path(folder) / name)
            found |= {f"{name}/{path}": content for path, content in inner.items()}
    return found


def kept_files() -> st.SearchStrategy[Files]:
    files: Files = dict(kept_bytes())
    text = kept_bytes()["dense/graph.json"]
    described = altered(json.loads(text)).map(
        lambda value: {**files, "dense/graph.json": json_bytes(value)}
    )
    odd = odd_array(kept_bytes())
    return described | odd | odd | damaged(files) | misplaced(files)


def read_kept_graphs(folder: Path) -> None:
    """With right checksums, as a malicious writer has them."""
    torch.manual_seed(0)
    for name in KEPT:
        network = build_network("deepgat", find_system("deepgat").config, 6, 3).eval()
        digest = _signed(folder / name)
        graph = read_kept(folder / name, digest, Expected(6, 3, False, name == "dense", 0))
        if graph.ids is not None:
            assert graph.ids.find("n7") in (*range(24), -1)
        outputs = field_outputs(network, GrownGraph(graph), np.array([3, 20]))
        assert outputs.logits.shape == (2, 3)


def _signed(folder: Path) -> str:
    path = folder / "graph.json"
    if not path.is_file():
        return ""
    text = path.read_bytes()
    try:
        described = json.loads(text)
        for name in described["arrays"]:
            array = folder / f"{name}.npy"
            content = array.read_bytes() if array.is_file() else b""  # a pipe never ends
            described["arrays"][name] = hashlib.sha256(content).hexdigest()
        text = json.dumps(described).encode()
        path.write_bytes(text)
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError):
        pass
    return hashlib.sha256(text).hexdigest()


@cache
def cache_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        write_graphs(path, tiny_dataset(sparse=True).graphs)
        return path.read_bytes()


def cache_files() -> st.SearchStrategy[Files]:
    header, rest = header_of(cache_bytes())
    made = altered(header).map(lambda value: {"c": with_header(value, rest)})
    return made | damaged({"c": cache_bytes()})


def read_cache(folder: Path) -> None:
    try:
        read_graphs(folder / "c")
    except DamagedFile as error:  # which builds it anew
        raise UserError("damaged") from error


READERS = (
    Reader("csv", csv_files, read_tables),
    Reader("edge-list", list_files, read_list),
    Reader("npz", npz_files, read_npz_file),
    Reader("parquet", parquet_files, read_tables),
    Reader("graphml", lambda: networkx_files(0), read_networkx),
    Reader("gml", lambda: networkx_files(1), read_networkx),
    Reader("model.json", described_files, read_model),
    Reader("safetensors", weights_files, read_model),
    Reader("calibration.json", calibration_files, read_model),
    Reader("progress", progress_files, read_progress),
    Reader("records", record_files, read_record_lines),
    Reader("tar", tar_files, read_tar),
    Reader("store", store_files, read_store),
    Reader("toml", config_files, read_config_file),
    Reader("partition", partition_files, read_parts),
    Reader("kept-graph", kept_files, read_kept_graphs),
    Reader("cache", cache_files, read_cache),
)
