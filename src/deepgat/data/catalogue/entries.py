"""The entries of the catalogue: each dataset with its raw files and reader.

Two names need care. "PPI-rebuilt" has the graphs of GraphSAGE's PPI with other features and
labels. "Flickr-AANE" is not GraphSAINT's Flickr. Never report either as the dataset it resembles.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch_geometric import datasets as pyg
from torch_geometric.data import Data

from deepgat.data.catalogue import readers
from deepgat.data.catalogue.readers import PygLoader
from deepgat.data.synthetic import csbm_graph, digits_graph, hops_graph
from deepgat.errors import unknown_name

GEOM_GCN_SPLITS = 10
Size = tuple[int, int, int, int]
"""Nodes, edges, features, classes."""


@dataclass(frozen=True)
class Entry:
    """One dataset of the catalogue."""

    key: str
    title: str
    note: str
    default_split: str
    nodes: int
    edges: int | None
    """Directed pairs in the raw graph, as PyG counts them; ``None`` if machines differ."""
    features: int
    classes: int
    read: Callable[[Path], list[Data]]
    """Reads the graphs from a data folder that holds ``files`` in ``folder``."""
    folder: str = ""
    """Path of the raw files relative to the data folder; empty for built-in datasets."""
    files: tuple[str, ...] = ()
    fetch: Callable[[Path], None] | None = None
    """Downloads the raw files into a data folder; None if there is no download."""
    directed: bool = False
    normalize: bool = False
    """Whether the usual protocol divides feature rows by their sum."""
    multi_label: bool = False
    metric: str = "accuracy"
    """What results on it are published in."""
    stored_splits: int = 10
    """How many splits there are, if the default is a stored one."""

    @property
    def built_in(self) -> bool:
        return not self.files


def find_entry(name: str) -> Entry:
    """The entry of a name, ignoring case; a :class:`UserError` lists all names."""
    try:
        return ENTRIES[name.strip().lower()]
    except KeyError:
        raise unknown_name("dataset", name, ENTRIES) from None


def _planetoid(title: str, size: Size, *, normalize: bool) -> Entry:
    key, folder = title.lower(), f"{title}/raw"
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = tuple(f"ind.{key}.{part}" for part in parts)
    loader = PygLoader(pyg.Planetoid, arguments=(title,))
    pickles = tuple(f"{folder}/{file}" for file in files[:-1])
    read = partial(readers.read_planetoid, loader, pickles)
    note = "citations between papers (Planetoid)"
    return Entry(
        key, title, note, "public", *size, read, folder, files, loader.fetch, normalize=normalize
    )


def _shchur(kind: type, name: str, note: str, file: str, size: Size) -> Entry:
    title, note = f"{kind.__name__} {name}", f"{note} (Shchur et al.)"
    fetch, folder = PygLoader(kind, arguments=(name,)).fetch, f"{name}/raw"
    read = partial(readers.read_shchur, f"{folder}/{file}")
    return Entry(name.lower(), title, note, "authors", *size, read, folder, (file,), fetch)


def _coauthor(name: str, size: Size) -> Entry:
    note, file = "co-authors, keywords of their papers", f"ms_academic_{name[:3].lower()}.npz"
    return _shchur(pyg.Coauthor, name, note, file, size)


def _amazon(name: str, size: Size) -> Entry:
    note, file = "goods bought together, words of reviews", f"amazon_electronics_{name.lower()}.npz"
    return _shchur(pyg.Amazon, name, note, file, size)


def _heterophilous(
    key: str, note: str, size: Size, kind: type = pyg.HeterophilousGraphDataset
) -> Entry:
    name = key.replace("-", "_")
    title, loader = key.capitalize(), PygLoader(kind, arguments=(name,))
    metric, told = ("roc_auc", ", ROC-AUC") if size[-1] == 2 else ("accuracy", "")
    note = f"{note} (Platonov et al., ten splits{told})"
    read, files = partial(readers.read_with_pyg, loader), (f"{name}.npz",)
    return Entry(
        key, title, note, "stored:0", *size, read, f"{name}/raw", files, loader.fetch, metric=metric
    )


def _geom_gcn(
    key: str, note: str, size: Size, loader: PygLoader, folder: str, stem: str = ""
) -> Entry:
    splits = (f"{stem or key}_split_0.6_0.2_{i}.npz" for i in range(GEOM_GCN_SPLITS))
    files = ("out1_node_feature_label.txt", "out1_graph_edges.txt", *splits)
    note = f"{note} (geom-gcn, ten splits)"
    read = partial(readers.read_with_pyg, loader)
    title, fetch = key.capitalize(), loader.fetch
    return Entry(key, title, note, "stored:0", *size, read, folder, files, fetch, directed=True)


def _webkb(key: str, nodes: int, edges: int) -> Entry:
    loader = PygLoader(pyg.WebKB, arguments=(key,))
    return _geom_gcn(key, "pages of a university", (nodes, edges, 1703, 5), loader, f"{key}/raw")


def _wikipedia(key: str, nodes: int, edges: int, features: int) -> Entry:
    loader = PygLoader(pyg.WikipediaNetwork, arguments=(key,))
    size = (nodes, edges, features, 5)
    return _geom_gcn(key, "pages of Wikipedia", size, loader, f"{key}/geom_gcn/raw")


def _hops(hops: int) -> Entry:
    return Entry(
        f"hops-{hops}",
        f"Hops-{hops}",
        f"a label depends on a node {hops} links away, on nothing nearer (directed, ten splits)",
        "stored:0",
        *(240 * (4 * hops - 2), 240 * (16 * hops - 24), 32, 4),
        read=lambda root: [hops_graph(hops)],
    )


def _ppi(key: str, title: str, note: str, folder: str, **options: Any) -> Entry:
    size = (56_944, 1_587_264, 50, 121)
    parts = ("feats.npy", "graph_id.npy", "graph.json", "labels.npy")
    files = tuple(f"{use}_{part}" for use in ("train", "valid", "test") for part in parts)
    read = partial(readers.read_ppi, folder)
    options["multi_label"] = True
    return Entry(key, title, note, "public", *size, read, folder, files, **options)


_WIKICS = PygLoader(pyg.WikiCS, "WikiCS", (None, None, False))
_FLICKR = PygLoader(pyg.Flickr, root="Flickr")
_AANE = PygLoader(pyg.AttributedGraphDataset, "AttributedGraph", ("flickr",))

_ALL = (
    _planetoid("Cora", (2_708, 10_556, 1_433, 7), normalize=True),
    _planetoid("CiteSeer", (3_327, 9_104, 3_703, 6), normalize=True),
    _planetoid("PubMed", (19_717, 88_648, 500, 3), normalize=False),
    _coauthor("CS", (18_333, 163_788, 6_805, 15)),
    _coauthor("Physics", (34_493, 495_924, 8_415, 5)),
    _amazon("Photo", (7_650, 238_162, 745, 8)),
    _amazon("Computers", (13_752, 491_722, 767, 10)),
    Entry(
        "wikics",
        "WikiCS",
        "pages of Wikipedia on computer science (Mernyei and Cangea, twenty splits)",
        "stored:0",
        *(11_701, 297_110, 300, 10),
        read=partial(readers.read_wikics, _WIKICS),
        folder="WikiCS/raw",
        files=("data.json",),
        fetch=_WIKICS.fetch,
        directed=True,
        stored_splits=20,
    ),
    Entry(
        "flickr",
        "Flickr",
        "images that share something (GraphSAINT)",
        "public",
        *(89_250, 899_756, 500, 7),
        read=_FLICKR.read,
        folder="Flickr/raw",
        files=("adj_full.npz", "feats.npy", "class_map.json", "role.json"),
        fetch=_FLICKR.fetch,
    ),
    Entry(
        "flickr-aane",
        "Flickr-AANE",
        "users and their tags (AANE); not GraphSAINT's Flickr",
        "authors",
        *(7_575, 479_476, 12_047, 9),
        read=partial(readers.read_attributed, "AttributedGraph/flickr/raw"),
        folder="AttributedGraph/flickr/raw",
        files=("attrs.npz", "edgelist.txt", "labels.txt"),
        fetch=_AANE.fetch,
    ),
    _ppi(
        "ppi",
        "PPI",
        "proteins in 24 tissues (GraphSAGE)",
        "PPI/raw",
        fetch=PygLoader(pyg.PPI, root="PPI").fetch,
    ),
    _ppi(
        "ppi-rebuilt",
        "PPI-rebuilt",
        "the 24 graphs of PPI with other features and labels; not GraphSAGE's PPI",
        "ppi_rebuilt/raw",
    ),
    _webkb("texas", 183, 325),
    _webkb("wisconsin", 251, 515),
    _webkb("cornell", 183, 298),
    _wikipedia("chameleon", 2_277, 36_101, 2_325),
    _wikipedia("squirrel", 5_201, 217_073, 2_089),
    _geom_gcn(
        "actor",
        "actors on the same page of Wikipedia",
        (7_600, 30_019, 932, 5),
        PygLoader(pyg.Actor, root="Actor"),
        "Actor/raw",
        stem="film",
    ),
    _heterophilous("minesweeper", "cells of a board", (10_000, 78_804, 7, 2)),
    _heterophilous("roman-empire", "words of an article", (22_662, 65_854, 300, 18)),
    _heterophilous("amazon-ratings", "goods bought together", (24_492, 186_100, 300, 5)),
    _heterophilous("tolokers", "workers on the same tasks", (11_758, 1_038_000, 10, 2)),
    _heterophilous("questions", "users who answered each other", (48_921, 307_080, 301, 2)),
    _heterophilous(
        "chameleon-filtered",
        "Chameleon without its duplicate nodes",
        (890, 17_708, 2_325, 5),
        readers.FilteredWikipedia,
    ),
    _heterophilous(
        "squirrel-filtered",
        "Squirrel without its duplicate nodes",
        (2_223, 93_996, 2_089, 5),
        readers.FilteredWikipedia,
    ),
    Entry(
        "digits",
        "Digits",
        "similar images of handwritten digits (scikit-learn)",
        "authors",
        *(1_797, None, 64, 10),
        read=lambda root: [digits_graph()],
    ),
    Entry(
        "csbm",
        "CSBM",
        "drawn from a contextual stochastic block model with hubs",
        "authors",
        *(2_000, None, 32, 5),
        read=lambda root: [csbm_graph(hubs=10, hub_degree=100)],
    ),
    *map(_hops, (2, 4, 8, 16, 32)),
)
ENTRIES = {entry.key: entry for entry in _ALL}
