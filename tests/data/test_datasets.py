"""The catalogue on made-up raw files: from file to graph, the cache, and what goes wrong."""

import dataclasses
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from raw_files import (
    make_attributed,
    make_coauthor,
    make_flickr,
    make_heterophilous,
    make_ppi,
    make_wikics,
)
from torch_geometric import datasets as pyg
from torch_geometric.utils import coalesce

from deepgat.data import NodeDataset, list_datasets, load_graph, parse_split
from deepgat.data.catalogue.cache import graph_file
from deepgat.data.catalogue.entries import ENTRIES, find_entry
from deepgat.errors import UserError

CACHE = "DEEPGAT_CACHE"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("DEEPGAT_DATA", str(folder))
    return folder


def files_below(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["digits", "CSBM"])
def test_built_in(name: str) -> None:
    dataset = load_graph(name)
    entry = ENTRIES[name.lower()]
    graph = dataset.graph
    assert dataset.name == entry.key
    assert dataset.split == "authors"
    assert (graph.num_nodes, dataset.num_features) == (entry.nodes, entry.features)
    assert int(graph.y.max()) + 1 == dataset.num_classes == entry.classes
    assert int(graph.train_mask.sum()) == 20 * entry.classes
    assert int(graph.val_mask.sum()) == 30 * entry.classes
    assert not os.path.exists(os.environ[CACHE]), "a built-in graph needs no cache"


def test_split_as_text_or_value() -> None:
    text = load_graph("csbm", "random:3:5/6").graph
    value = load_graph("csbm", parse_split("random:3:5/6")).graph
    assert torch.equal(text.train_mask, value.train_mask)
    assert int(text.val_mask.sum()) == 30


def test_unknown_names_are_told() -> None:
    with pytest.raises(UserError, match="unknown dataset 'corra': did you mean 'cora'"):
        load_graph("corra")
    with pytest.raises(UserError, match="unknown split 'rand'"):
        load_graph("csbm", "rand")
    with pytest.raises(UserError, match="the split 'random:0:20/0' of csbm has no validation"):
        load_graph("csbm", "random:0:20/0")


def test_lookalikes_keep_their_names() -> None:
    for entry in ENTRIES.values():
        assert (entry.title == "PPI") == (entry.key == "ppi")
        assert (entry.title == "Flickr") == (entry.key == "flickr")
    assert ENTRIES["ppi-rebuilt"].title == "PPI-rebuilt"
    assert ENTRIES["flickr-aane"].title == "Flickr-AANE"
    assert find_entry(" PPI-Rebuilt ").key == "ppi-rebuilt"


def test_every_default_split_can_be_read() -> None:
    for entry in ENTRIES.values():
        assert str(parse_split(entry.default_split)) == entry.default_split


def test_files_are_those_that_pyg_expects(tmp_path: Path) -> None:
    """The names in our messages against the ``raw_paths`` of PyG's own classes."""
    for key, entry in ENTRIES.items():
        if entry.fetch is None:
            continue
        loader = entry.fetch.__self__  # type: ignore[attr-defined]
        nothing = {name: lambda self, *_: None for name in ("_download", "_process", "load")}
        idle = type(loader.kind.__name__, (loader.kind,), nothing)
        dataset = idle(str(tmp_path / loader.root), *loader.arguments)
        expected = [tmp_path / entry.folder / file for file in entry.files]
        assert sorted(map(Path, dataset.raw_paths)) == sorted(expected), key


def test_coauthor_against_pyg(root: Path, tmp_path: Path) -> None:
    make_coauthor(root)
    before = files_below(root)
    graph = load_graph("cs").graph
    assert files_below(root) == before, "the data folder is read-only"
    shutil.copytree(root, tmp_path / "pyg")
    expected = pyg.Coauthor(str(tmp_path / "pyg"), "CS")[0]
    assert graph.x.layout is torch.sparse_csr
    assert torch.equal(graph.x.to_dense(), expected.x)
    assert torch.equal(graph.y, expected.y)
    assert torch.equal(graph.edge_index, expected.edge_index)
    assert not graph.has_self_loops()
    assert graph.is_undirected()


def test_amazon_against_pyg(root: Path, tmp_path: Path) -> None:
    make_coauthor(root, "Photo")
    graph = load_graph("photo").graph
    shutil.copytree(root, tmp_path / "pyg")
    expected = pyg.Amazon(str(tmp_path / "pyg"), "Photo")[0]
    assert torch.equal(graph.x.to_dense(), expected.x)
    for key in ("y", "edge_index"):
        assert torch.equal(graph[key], expected[key])
    assert int(load_graph("photo", "fractions:0.6/0.2:1").graph.train_mask.sum()) == 540


@pytest.mark.parametrize(
    ("key", "title", "width", "metric"),
    [
        ("minesweeper", "Minesweeper", 7, "roc_auc"),
        ("tolokers", "Tolokers", 10, "roc_auc"),
        ("questions", "Questions", 301, "roc_auc"),
        ("roman-empire", "Roman-empire", 300, "accuracy"),
        ("amazon-ratings", "Amazon-ratings", 300, "accuracy"),
    ],
)
def test_heterophilous_against_pyg(
    root: Path, tmp_path: Path, key: str, title: str, width: int, metric: str
) -> None:
    entry = ENTRIES[key]
    make_heterophilous(root, key.replace("-", "_"), entry.classes, width, 0.5)
    shutil.copytree(root, tmp_path / "pyg")
    expected = pyg.HeterophilousGraphDataset(str(tmp_path / "pyg"), title)[0]
    for index in (0, 9):
        dataset = load_graph(key, f"stored:{index}")
        assert (dataset.metric, dataset.title) == (metric, title)
        assert torch.equal(dataset.graph.x, expected.x)
        for part in ("y", "edge_index"):
            assert torch.equal(dataset.graph[part], expected[part])
        for part in ("train_mask", "val_mask", "test_mask"):
            assert torch.equal(dataset.graph[part], expected[part][:, index])
    assert load_graph(key).split == "stored:0"
    with pytest.raises(UserError, match="it has stored:0 to stored:9"):
        load_graph(key, "stored:10")


@pytest.mark.parametrize(("key", "width"), [("chameleon-filtered", 2325), ("squirrel-filtered", 9)])
def test_filtered_wikipedia(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, width: int
) -> None:
    """PyG has no loader for it: the same file, fetched from beside those that it knows."""
    path = make_heterophilous(root, key.replace("-", "_"), 5, width, 0.05)
    dataset = load_graph(key)
    with np.load(path) as parts:
        assert dataset.graph.x.layout is torch.sparse_csr
        assert torch.equal(dataset.graph.x.to_dense(), torch.from_numpy(parts["node_features"]))
    assert dataset.metric == "accuracy"
    assert dataset.graph.num_edges == 80

    asked = []

    def fetched(url: str, folder: str) -> None:
        asked.append(url)
        shutil.copy(path, folder)

    monkeypatch.setattr(pyg.heterophilous_graph_dataset, "download_url", fetched)
    monkeypatch.delenv("DEEPGAT_DATA")
    monkeypatch.setenv(CACHE, str(tmp_path / "other"))
    assert_same(dataset, load_graph(key))
    assert asked == [f"{pyg.HeterophilousGraphDataset.url}/{path.name}"]


def test_wikics_against_pyg(root: Path, tmp_path: Path) -> None:
    make_wikics(root)
    shutil.copytree(root / "WikiCS", tmp_path / "pyg")
    for undirected in (True, False):
        other = pyg.WikiCS(str(tmp_path / "pyg"), is_undirected=undirected)[0]
        graph = load_graph("wikics", "stored:19", undirected=undirected).graph
        assert torch.equal(graph.edge_index, coalesce(other.edge_index))
        assert torch.equal(graph.x, other.x)
        assert torch.equal(graph.y, other.y)
        assert torch.equal(graph.train_mask, other.train_mask[:, 19])
        assert torch.equal(graph.val_mask, (other.val_mask | other.stopping_mask)[:, 19])
        assert torch.equal(graph.test_mask, other.test_mask)
    with pytest.raises(UserError, match="it has stored:0 to stored:19"):
        load_graph("wikics", "stored:20")


def test_attributed_against_pyg(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="PyG reads this format with pandas")
    make_attributed(root)
    dataset = load_graph("flickr-aane", "fractions:0.5/0.2")
    shutil.copytree(root, tmp_path / "pyg")
    expected = pyg.AttributedGraphDataset(str(tmp_path / "pyg/AttributedGraph"), "flickr")[0]
    assert torch.equal(dataset.graph.x.to_dense(), expected.x.to_dense().float())
    assert torch.equal(dataset.graph.y, expected.y)
    assert torch.equal(dataset.graph.edge_index, expected.edge_index)
    assert dataset.title == "Flickr-AANE"


@pytest.mark.parametrize("key", ["ppi", "ppi-rebuilt"])
def test_ppi_against_pyg(root: Path, tmp_path: Path, key: str) -> None:
    pytest.importorskip("networkx", reason="PyG reads PPI with networkx")
    raw = root / ENTRIES[key].folder
    make_ppi(raw)
    dataset = load_graph(key)
    shutil.copytree(raw.parent, tmp_path / "pyg")
    kinds = ("train", "val", "test")
    expected = [(kind, g) for kind in kinds for g in pyg.PPI(str(tmp_path / "pyg"), kind)]
    assert len(dataset.graphs) == len(expected) == 6
    assert (dataset.multi_label, dataset.num_classes, dataset.split) == (True, 121, "public")
    for graph, (kind, other) in zip(dataset.graphs, expected, strict=True):
        assert torch.equal(graph.x, other.x)
        assert torch.equal(graph.y, other.y)
        assert torch.equal(graph.edge_index, coalesce(other.edge_index))
        for name in kinds:
            assert graph[f"{name}_mask"].tolist() == [name == kind] * 5
    with pytest.raises(UserError, match="has 6 graphs: iterate over its"):
        _ = dataset.graph
    for text in ("authors", "fractions:0.6/0.2", "stored:0"):
        with pytest.raises(UserError, match="its only split is 'public'"):
            load_graph(key, text)


def test_ppi_keeps_a_first_node_without_edges_in_its_place(root: Path) -> None:
    make_ppi(root / "PPI/raw", first_isolated=True)
    for graph in load_graph("ppi").graphs:
        assert graph.num_nodes == 5
        assert graph.edge_index.tolist() == [[1, 2, 2, 4], [2, 1, 4, 2]]


def test_flickr_with_an_unlabelled_node(root: Path) -> None:
    make_flickr(root)
    graph = load_graph("flickr").graph
    assert graph.y.tolist() == [0, 1, 2, 3, 4, -1, 6, 0]
    assert graph.train_mask.nonzero().view(-1).tolist() == [0, 1]
    assert graph.x.layout is torch.strided
    assert graph.num_edges == 16


def test_later_loads_read_the_cache_only(root: Path) -> None:
    path = make_coauthor(root)
    first = load_graph("cs")
    shutil.rmtree(path.parent)
    again = load_graph("cs", "authors", download=False)
    assert_same(first, again)
    assert os.listdir(os.environ[CACHE]) == ["graphs"], "work folders are removed"


def assert_same(one: NodeDataset, other: NodeDataset) -> None:
    assert one.split == other.split
    for a, b in zip(one.graphs, other.graphs, strict=True):
        assert torch.equal(a.x.to_dense(), b.x.to_dense())
        for key in ("edge_index", "y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(a[key], b[key])


def test_loads_do_not_share_tensors_that_a_user_may_change(root: Path) -> None:
    make_coauthor(root)
    load_graph("cs").graph.y.fill_(0)
    assert int(load_graph("cs").graph.y.max()) == 14


def test_damaged_cache_is_rebuilt(root: Path) -> None:
    make_coauthor(root)
    first = load_graph("cs")
    stored = graph_file("cs")
    stored.write_bytes(stored.read_bytes()[:-100])
    assert_same(first, load_graph("cs"))
    assert_same(first, load_graph("cs", download=False))


@pytest.mark.parametrize("key", [key for key, entry in ENTRIES.items() if entry.files])
def test_missing_dataset_says_which_files_and_where(key: str) -> None:
    with pytest.raises(UserError) as caught:
        load_graph(key, download=False)
    sentence = str(caught.value)
    entry = ENTRIES[key]
    assert sentence.startswith(f"{entry.title} is not available locally")
    assert "\n" not in sentence
    assert "DEEPGAT_DATA" in sentence
    assert f"folder {entry.folder} " in sentence
    assert all(file in sentence for file in entry.files)


def test_failed_download_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: pyg.PPI) -> None:
        (Path(self.raw_dir) / "train_feats.npy").write_bytes(b"half")
        raise OSError("connection\nlost")

    monkeypatch.setattr(pyg.PPI, "download", broken)
    with pytest.raises(UserError, match=r"downloading failed \(OSError: connection lost\): put"):
        load_graph("ppi")
    assert files_below(Path(os.environ[CACHE])) == {}


def test_download_is_parsed_and_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: pyg.PPI) -> None:
        os.rmdir(self.raw_dir)
        make_ppi(Path(self.raw_dir))

    def never(self: pyg.PPI) -> None:
        raise AssertionError("PyG is only asked to download")

    monkeypatch.setattr(pyg.PPI, "download", download)
    monkeypatch.setattr(pyg.PPI, "process", never)
    first = load_graph("ppi")
    assert len(first.graphs) == 6
    assert_same(first, load_graph("ppi", download=False))
    assert os.listdir(os.environ[CACHE]) == ["graphs"]


def test_rebuilt_ppi_is_never_downloaded() -> None:
    with pytest.raises(UserError, match="PPI-rebuilt is not available locally and there is no"):
        load_graph("ppi-rebuilt")


def test_incomplete_raw_files_are_named(root: Path) -> None:
    make_flickr(root)
    (root / "Flickr/raw/role.json").unlink()
    with pytest.raises(
        UserError, match=r"Flickr is incomplete: role\.json should be in .*Flickr/raw"
    ):
        load_graph("flickr")
    assert files_below(Path(os.environ[CACHE])) == {}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"<html>quota exceeded</html>"])
def test_unreadable_raw_files_are_told(root: Path, content: bytes) -> None:
    path = make_coauthor(root)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"files of Coauthor CS cannot be read .* the originals"):
        load_graph("cs")
    assert files_below(Path(os.environ[CACHE])) == {}


def test_pickled_code_is_refused(root: Path) -> None:
    """Planetoid's raw files are pickles: PyG must not see one that could run something."""
    raw = root / "Cora/raw"
    raw.mkdir(parents=True)
    for file in ENTRIES["cora"].files:
        (raw / file).write_bytes(pickle.dumps([1.0], protocol=2))
    trap = root / "trap"

    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(trap),)

    for protocol in (0, 2, 4):
        (raw / "ind.cora.graph").write_bytes(pickle.dumps(Harmful(), protocol))
        with pytest.raises(UserError, match=r"^ind\.cora\.graph in .* it would run code"):
            load_graph("cora")
    assert not trap.exists()


def test_object_arrays_are_never_unpickled(root: Path) -> None:
    path = make_coauthor(root)
    with np.load(path, allow_pickle=True) as file:
        parts = dict(file)
    parts["labels"] = np.array([{"a": 1}] * 900, dtype=object)
    np.savez(path, **parts)
    with pytest.raises(UserError, match="Object arrays cannot be loaded"):
        load_graph("cs")


def test_folders_that_do_not_work(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_coauthor(root)
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(CACHE, str(blocked))
    with pytest.raises(UserError, match=r"cannot write to the cache folder .* set DEEP"):
        load_graph("cs")
    monkeypatch.setenv("DEEPGAT_DATA", str(root / "nowhere"))
    with pytest.raises(UserError, match=r"DEEPGAT_DATA names .*nowhere', which is not a folder"):
        list_datasets()


def test_catalogue_says_what_is_at_hand(root: Path) -> None:
    make_coauthor(root)
    make_flickr(root)
    load_graph("cs")
    lines = {line.key: line for line in list_datasets()}
    assert list(lines) == list(ENTRIES)
    assert (lines["cs"].source, lines["cs"].path) == (
        "cache",
        graph_file("cs"),
    )
    assert (lines["flickr"].source, lines["flickr"].path) == ("data folder", root / "Flickr/raw")
    assert (lines["digits"].source, lines["digits"].path) == ("built in", None)
    assert not lines["cora"].at_hand
    (root / "Flickr/raw/role.json").unlink()
    assert not {line.key: line for line in list_datasets()}["flickr"].at_hand


def test_dataset_is_a_value() -> None:
    dataset = load_graph("csbm")
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.name = "other"  # type: ignore[misc]
