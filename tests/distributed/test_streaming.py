"""A graph divided on disk: byte for byte what is written from memory."""

import filecmp
import importlib
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from deepgat.cli import main
from deepgat.data import ReadOptions, load_graph
from deepgat.data.tables import can_stream, delimited
from deepgat.distributed import has_metis
from deepgat.distributed.partition_folder import write_partition
from deepgat.distributed.streaming import write_streamed
from deepgat.errors import UserError

NODES, EDGES = 300, 900


def write_csv(folder: Path, columns: str = "", edge_columns: str = "", labels: str = "abc") -> Path:
    """Named nodes of several kinds of columns; edges named up to twelve times, loops, a hub."""
    draw = random.Random(0)
    folder.mkdir()
    makers = {
        "size": lambda: repr(draw.gauss(3, 2)),
        "flag": lambda: str(draw.randint(0, 1)),
        "colour": lambda: draw.choice(["red", "green", "blue", ""]),
        "late": lambda: draw.choice(["1", "2"]),
        "rest": lambda: "0" if draw.random() < 0.97 else "1",
        "weight": lambda: repr(draw.choice([0.0, 0.1, 0.7, 2.5])),
        "cost": lambda: repr(draw.random()),
        "gain": lambda: repr(draw.gauss(0, 1)),
    }
    names = ["id", "label", *columns.split()]
    rows = [",".join(names)]
    for i in range(NODES):
        cells = [makers[name]() for name in names[2:]]
        if "late" in names and i == NODES - 2:  # a column that turns into text at the end
            cells[names.index("late") - 2] = "many"
        rows.append(",".join([f"n{i}", draw.choice([*labels, ""]), *cells]))
        if i % 50 == 0:
            rows.append("")  # lines without content are no rows
    (folder / "nodes.csv").write_text("\n".join(rows) + "\n")
    names = ["source", "target", *edge_columns.split()]
    rows = [",".join(names)]
    for i in range(EDGES):
        ends = [int(NODES * draw.random() ** 2) for _ in range(2)] if i % 9 else [7, i % NODES]
        for _ in range(12 if i % 100 == 0 else 1):
            cells = [makers[name]() for name in names[2:]]
            rows.append(",".join([*(f"n{end}" for end in ends), *cells]))
    (folder / "edges.csv").write_text("\n".join(rows) + "\n")
    return folder


def write_npz(path: Path, weighted: bool = False, dense: bool = False) -> Path:
    random = np.random.default_rng(0)
    weights = (lambda k: random.random(k) + 0.5) if weighted else np.ones
    adjacency = sp.random(NODES, NODES, 0.02, "csr", random_state=1, data_rvs=weights)
    attributes = sp.random(NODES, 40, 0.05, "csr", random_state=2)
    parts = {"attr_matrix": random.standard_normal((NODES, 6))} if dense else {}
    for name, matrix in (("adj", adjacency), *(() if dense else (("attr", attributes),))):
        parts |= {f"{name}_{key}": getattr(matrix, key) for key in ("data", "indices", "indptr")}
        parts[f"{name}_shape"] = np.array(matrix.shape)
    np.savez_compressed(path, labels=random.integers(3, size=NODES), **parts)
    return path


def same_folders(a: Path, b: Path) -> None:
    files = sorted(p.relative_to(a) for p in a.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(b) for p in b.rglob("*") if p.is_file())
    assert len(files) >= 20
    _, different, errors = filecmp.cmpfiles(a, b, [str(f) for f in files], shallow=False)
    assert (different, errors) == ([], [])


CASES = {
    "numbers": ("size flag", "", {}),
    "directed": ("size flag", "", {"undirected": False}),
    "categories": ("size colour late", "", {"scale": "unit"}),
    "sparse": ("rest flag colour", "", {"scale": "none", "drop": "flag,colour"}),
    "values": ("size", "weight cost gain", {}),
    "values-one-way": ("size", "weight gain", {"undirected": False}),
    "dropped": ("size flag", "weight cost", {"drop": "weight,flag"}),
}
METHODS = ["order", "stream", pytest.param("metis", marks=pytest.mark.skipif(
    not has_metis(), reason="pymetis is not installed"))]  # fmt: skip


def compare(path: Path, out: Path, options: dict, method: str = "stream", parts: int = 3) -> None:
    data = load_graph(path, **options)
    sizes = write_partition(out / "memory", data, parts, method)
    found = write_streamed(
        out / "disk", path, ReadOptions.of(options), None, parts, method, stretch=64
    )
    assert found[1] == sizes
    assert sorted(found[0].notes) == sorted(data.notes)
    assert sorted(item.name for item in out.iterdir() if item != path) == ["disk", "memory"]
    same_folders(out / "memory", out / "disk")


@pytest.mark.parametrize("case", CASES)
def test_tables_are_divided_as_from_memory(case, tmp_path, monkeypatch):
    columns, edge_columns, options = CASES[case]
    path = write_csv(tmp_path / "graph", columns, edge_columns)
    assert can_stream(path, ReadOptions.of(options))
    monkeypatch.setattr(delimited, "BLOCK", 1500)  # many pieces
    compare(path, tmp_path, options)


@pytest.mark.parametrize("method", METHODS)
def test_every_way_to_partition_gives_the_same_parts(method, tmp_path):
    compare(write_csv(tmp_path / "graph", "size"), tmp_path, {}, method, 4)


def test_several_labels_per_node(tmp_path):
    path = write_csv(tmp_path / "graph", "size", labels=["a;b", "b", "c;a"])
    compare(path, tmp_path, {}, parts=2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("undirected", [False, True])
def test_arrays_are_divided_as_from_memory(weighted, dense, undirected, tmp_path):
    path = write_npz(tmp_path / "graph.npz", weighted, dense)
    compare(path, tmp_path, {"undirected": undirected})


def test_mistakes_name_file_and_line(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK", 1500)
    path = write_csv(tmp_path / "graph", "size", "cost")
    lines = (path / "edges.csv").read_text().splitlines()

    def refused(line: str, match: str) -> None:
        (path / "edges.csv").write_text("\n".join([*lines[:500], line, *lines[501:]]) + "\n")
        with pytest.raises(UserError, match=match):
            write_streamed(tmp_path / "out", path, ReadOptions(), None, 2)
        assert [item.name for item in tmp_path.iterdir()] == ["graph"]  # nothing is left

    refused("n1,nobody,1", "edges.csv, line 501, column 'target': the id 'nobody' is not among")
    refused("n1,n2,much", "edges.csv, line 501, column 'cost': 'much' is not a number")
    refused("n1,n2,", "edges.csv, line 501, column 'cost': the number is missing")
    (path / "edges.csv").write_text("\n".join(lines) + "\n")
    nodes = (path / "nodes.csv").read_text().splitlines()
    nodes[200] = nodes[200].rsplit(",", 1)[0] + ","
    (path / "nodes.csv").write_text("\n".join(nodes) + "\n")
    with pytest.raises(UserError, match="line 201, column 'size': the number is"):
        write_streamed(tmp_path / "out", path, ReadOptions(), None, 2)


def test_what_needs_all_of_a_graph_is_not_streamed(tmp_path):
    path = write_csv(tmp_path / "graph", "size")
    assert not can_stream(path, ReadOptions(structure="degree"))
    assert not can_stream(path, ReadOptions(text="size"))
    assert not can_stream(tmp_path / "nothing", ReadOptions())


def test_an_interrupt_at_any_stage_leaves_nothing(tmp_path):
    path = write_csv(tmp_path / "graph", "size")
    stages: list[str] = []
    write_streamed(tmp_path / "out", path, ReadOptions(), None, 2, "stream",
                   lambda what, share: stages.append(what))  # fmt: skip
    shutil.rmtree(tmp_path / "out")
    assert len(set(stages)) == 9
    for stage in set(stages):

        def stop(what: str, share: float, stage: str = stage) -> None:
            if what == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_streamed(tmp_path / "out", path, ReadOptions(), None, 2, "stream", stop)
        assert [item.name for item in tmp_path.iterdir()] == ["graph"]


def test_the_command_streams_tables_and_says_how(tmp_path, capsys, monkeypatch):
    path = write_csv(tmp_path / "graph", "size")
    monkeypatch.setattr(sys, "argv", ["deepgat", "partition", str(path), "--parts", "2", "--out",
                                      str(tmp_path / "out"), "--method", "stream"])  # fmt: skip
    command = importlib.import_module("deepgat.cli.partition")
    monkeypatch.setattr(command, "load_data", None)  # not read into memory
    with pytest.raises(SystemExit, match="0"):
        main()
    told = capsys.readouterr()
    assert "in 2 parts by stream" in " ".join(told.out.split())
    assert "comes without a split" in " ".join(told.err.split())
    assert (tmp_path / "out" / "partition.json").exists()


def test_a_dataset_of_the_catalogue_goes_before_a_folder_of_its_name(tmp_path, capsys, monkeypatch):
    """As for every other command."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "csbm", "size")
    monkeypatch.setattr(sys, "argv", ["deepgat", "partition", "csbm", "--parts", "2", "--out",
                                      "out", "--method", "stream"])  # fmt: skip
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "CSBM" in capsys.readouterr().out


@pytest.mark.parametrize("edges", ["n0,n1\n", "", "n0,n1,0\n"])
def test_stretches_without_edges(edges, tmp_path):
    """Most nodes are alone, or all of them, or the only edge weighs nothing."""
    path = write_csv(tmp_path / "graph", "size")
    header = "source,target,weight" if edges.count(",") == 2 else "source,target"
    (path / "edges.csv").write_text(f"{header}\n{edges}")
    compare(path, tmp_path, {}, parts=2)


def test_no_nodes_at_all(tmp_path):
    path = write_csv(tmp_path / "graph", "size")
    (path / "nodes.csv").write_text("id,label,size\n")
    with pytest.raises(UserError, match=r"nodes\.csv has no nodes: expected at least one"):
        write_streamed(tmp_path / "disk", path, ReadOptions(), None, 2, "stream")
