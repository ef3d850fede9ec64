"""The real datasets: counts as published, splits as stored, features as PyG has them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric import datasets as pyg
from torch_geometric.transforms import NormalizeFeatures

from deepgat.data import NodeDataset, PropagateLabels, list_datasets, load_graph
from deepgat.data.catalogue.entries import ENTRIES
from deepgat.models import LabelPropagation

pytestmark = [pytest.mark.data, pytest.mark.slow]

# nodes, edges, features, classes: counted with PyG's loaders
COUNTS = {
    "cora": (2_708, 10_556, 1_433, 7),
    "citeseer": (3_327, 9_104, 3_703, 6),
    "pubmed": (19_717, 88_648, 500, 3),
    "cs": (18_333, 163_788, 6_805, 15),
    "physics": (34_493, 495_924, 8_415, 5),
    "photo": (7_650, 238_162, 745, 8),
    "computers": (13_752, 491_722, 767, 10),
    "wikics": (11_701, 297_110, 300, 10),
    "flickr": (89_250, 899_756, 500, 7),
    "flickr-aane": (7_575, 479_476, 12_047, 9),
    "ppi": (56_944, 1_587_264, 50, 121),
    "ppi-rebuilt": (56_944, 1_587_264, 50, 121),
    "texas": (183, 325, 1_703, 5),
    "wisconsin": (251, 515, 1_703, 5),
    "cornell": (183, 298, 1_703, 5),
    "chameleon": (2_277, 36_101, 2_325, 5),
    "squirrel": (5_201, 217_073, 2_089, 5),
    "actor": (7_600, 30_019, 932, 5),
    "minesweeper": (10_000, 78_804, 7, 2),
    "roman-empire": (22_662, 65_854, 300, 18),
    "amazon-ratings": (24_492, 186_100, 300, 5),
    "tolokers": (11_758, 1_038_000, 10, 2),
    "questions": (48_921, 307_080, 301, 2),
    "chameleon-filtered": (890, 17_708, 2_325, 5),
    "squirrel-filtered": (2_223, 93_996, 2_089, 5),
}
# training, validation and test nodes of the default split, where the files were at hand to count
PARTS = {
    "cora": (140, 500, 1_000),
    "citeseer": (120, 500, 1_000),
    "pubmed": (60, 500, 1_000),
    "cs": (300, 450, 17_583),
    "physics": (100, 150, 34_243),
    "photo": (160, 240, 7_250),
    "flickr": (44_625, 22_312, 22_313),
    "flickr-aane": (180, 270, 7_125),
    "ppi": (44_906, 6_514, 5_524),
    "ppi-rebuilt": (44_906, 6_514, 5_524),
    "texas": (87, 59, 37),
    "wisconsin": (120, 80, 51),
    "cornell": (87, 59, 37),
    "chameleon": (1_092, 729, 456),
    "squirrel": (2_496, 1_664, 1_041),
    "actor": (3_648, 2_432, 1_520),
    "minesweeper": (5_000, 2_500, 2_500),
}


class Loader:
    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, key: str, split: str | None = None, **options: bool) -> NodeDataset:
        folder = ENTRIES[key].folder
        if not (self.root / folder).is_dir():
            pytest.skip(f"DEEPGAT_DATA has no {folder}")
        return load_graph(key, split, download=False, **options)


@pytest.fixture
def load(real_data: Path, deepgat_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Through the cache of the whole run, so that each dataset is parsed once."""
    monkeypatch.setenv("DEEPGAT_DATA", str(real_data))
    monkeypatch.setenv("DEEPGAT_CACHE", str(deepgat_cache))
    return Loader(real_data)


def test_every_dataset_of_files_is_counted() -> None:
    assert set(PARTS) <= set(COUNTS) == {key for key, entry in ENTRIES.items() if entry.files}


@pytest.mark.parametrize("key", COUNTS)
def test_counts(load: Loader, key: str) -> None:
    dataset = load(key, undirected=False)
    entry = ENTRIES[key]
    graphs = dataset.graphs
    nodes, edges = sum(g.num_nodes for g in graphs), sum(g.num_edges for g in graphs)
    assert (nodes, edges, dataset.num_features, dataset.num_classes) == COUNTS[key]
    assert (entry.nodes, entry.edges, entry.features, entry.classes) == COUNTS[key]
    if dataset.multi_label:
        assert {g.y.shape[1] for g in graphs} == {dataset.num_classes}
        assert set(graphs[0].y.unique().tolist()) == {0, 1}
        assert len(graphs) == 24
    else:
        assert dataset.graph.y.unique().tolist() == list(range(dataset.num_classes))
    masks = [torch.stack([g.train_mask, g.val_mask, g.test_mask]) for g in graphs]
    if key in PARTS:
        assert tuple(torch.cat(masks, dim=1).sum(dim=1).tolist()) == PARTS[key]
    assert all(int(mask.sum(dim=0).max()) <= 1 for mask in masks)
    assert all(g.x.dtype is torch.float32 for g in graphs)
    assert dataset.title == entry.title


@pytest.mark.parametrize("key", COUNTS)
def test_undirected_by_default(load: Loader, key: str) -> None:
    dataset = load(key)
    assert all(graph.is_undirected() for graph in dataset.graphs)
    if ENTRIES[key].directed:
        assert not load(key, undirected=False).graph.is_undirected()


def test_the_data_folder_is_left_alone(load: Loader) -> None:
    load("cora")
    assert not list(load.root.rglob("processed"))


def pyg_copy(load: Loader, folder: Path, key: str) -> Path:
    """A place where PyG may process the raw files itself."""
    entry = ENTRIES[key]
    (folder / entry.folder).mkdir(parents=True)
    for file in entry.files:
        os.symlink(load.root.resolve() / entry.folder / file, folder / entry.folder / file)
    return folder


def test_coauthor_cs_equals_pyg(load: Loader, tmp_path: Path) -> None:
    graph = load("cs").graph
    expected = pyg.Coauthor(str(pyg_copy(load, tmp_path, "cs")), "CS")[0]
    assert torch.equal(graph.x.to_dense(), expected.x)
    assert torch.equal(graph.edge_index, expected.edge_index)
    assert torch.equal(graph.y, expected.y)


@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "PubMed"])
def test_planetoid_equals_pyg(load: Loader, tmp_path: Path, name: str) -> None:
    graph = load(name.lower()).graph
    transform = None if name == "PubMed" else NormalizeFeatures()
    root = pyg_copy(load, tmp_path, name.lower())
    expected = pyg.Planetoid(str(root), name, transform=transform)[0]
    torch.testing.assert_close(graph.x.to_dense(), expected.x, rtol=1e-6, atol=0)
    for key in ("edge_index", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(graph[key], expected[key])


@pytest.mark.parametrize("key", ["texas", "chameleon"])
def test_stored_splits_are_the_files(load: Loader, key: str) -> None:
    for index in (0, 4, 9):
        graph = load(key, f"stored:{index}").graph
        file = load.root / ENTRIES[key].folder / f"{key}_split_0.6_0.2_{index}.npz"
        with np.load(file) as masks:
            for name in ("train_mask", "val_mask", "test_mask"):
                assert graph[name].tolist() == masks[name].astype(bool).tolist()


def test_minesweeper_equals_pyg(load: Loader, tmp_path: Path) -> None:
    root = pyg_copy(load, tmp_path, "minesweeper")
    expected = pyg.HeterophilousGraphDataset(str(root), "Minesweeper")[0]
    dataset = load("minesweeper", "stored:3")
    assert dataset.metric == "roc_auc"
    for key in ("x", "edge_index", "y"):
        assert torch.equal(dataset.graph[key], expected[key])
    for key in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(dataset.graph[key], expected[key][:, 3])


def test_photo_equals_pyg(load: Loader, tmp_path: Path) -> None:
    graph = load("photo").graph
    expected = pyg.Amazon(str(pyg_copy(load, tmp_path, "photo")), "Photo")[0]
    assert graph.x.layout is torch.strided, "a third of the entries are 1"
    for key in ("x", "edge_index", "y"):
        assert torch.equal(graph[key], expected[key])


def test_large_features_stay_sparse(load: Loader) -> None:
    x = load("physics").graph.x
    assert x.layout is torch.sparse_csr
    assert x.col_indices().dtype is torch.int32
    assert x.values().unique().tolist() == [1]


def test_label_features_of_cs(load: Loader) -> None:
    dataset = load("cs")
    graph = PropagateLabels(num_classes=15)(dataset.graph)
    assert graph.label_features.shape == (18_333, 3, 15)
    assert not graph.label_features[:, 0].any()
    scores = LabelPropagation(4, 15)(graph.edge_index, graph.y, graph.train_mask)
    accuracy = (scores.argmax(dim=1) == graph.y)[graph.test_mask].double().mean()
    assert accuracy > 0.6


def test_catalogue_finds_the_files(
    load: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPGAT_CACHE", str(tmp_path))
    for line in list_datasets():
        here = line.key in COUNTS and (load.root / ENTRIES[line.key].folder).is_dir()
        assert (line.source == "data folder") == here
