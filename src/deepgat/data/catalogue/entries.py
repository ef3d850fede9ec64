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
from deepgat.data.synthetic import csbm_graph, digits_graph
from deepgat.errors import unknown_name

STORED_SPLITS = 10
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


def _coauthor(name: str, size: Size) -> Entry:
    folder, file = f"{name}/raw", f"ms_academic_{name[:3].lower()}.npz"
    title, note = f"Coauthor {name}", "co-authors, keywords of their papers (Shchur et al.)"
    fetch = PygLoader(pyg.Coauthor, arguments=(name,)).fetch
    read = partial(readers.read_coauthor, f"{folder}/{file}")
    return Entry(name.lower(), title, note, "authors", *size, read, folder, (file,), fetch)


def _geom_gcn(
    key: str, note: str, size: Size, loader: PygLoader, folder: str, stem: str = ""
) -> Entry:
    splits = (f"{stem or key}_split_0.6_0.2_{i}.npz" for i in range(STORED_SPLITS))
    files = ("out1_node_feature_label.txt", "out1_graph_edges.txt", *splits)
    note = f"{note} (geom-gcn, ten splits)"
    read = partial(readers.read_bag_of_words, loader)
    title, fetch = key.capitalize(), loader.fetch
    return Entry(key, title, note, "stored:0", *size, read, folder, files, fetch, directed=True)


def _webkb(key: str, nodes: int, edges: int) -> Entry:
    loader = PygLoader(pyg.WebKB, arguments=(key,))
    return _geom_gcn(key, "pages of a university", (nodes, edges, 1703, 5), loader, f"{key}/raw")


def _wikipedia(key: str, nodes: int, edges: int, features: int) -> Entry:
    loader = PygLoader(pyg.WikipediaNetwork, arguments=(key,))
    size = (nodes, edges, features, 5)
    return _geom_gcn(key, "pages of Wikipedia", size, loader, f"{key}/geom_gcn/raw")


def _ppi(key: str, title: str, note: str, folder: str, **options: Any) -> Entry:
    size = (56_944, 1_587_264, 50, 121)
    parts = ("feats.npy", "graph_id.npy", "graph.json", "labels.npy")
    files = tuple(f"{use}_{part}" for use in ("train", "valid", "test") for part in parts)
    read = partial(readers.read_ppi, folder)
    options["multi_label"] = True
    return Entry(key, title, note, "public", *size, read, folder, files, **options)


_FLICKR = PygLoader(pyg.Flickr, root="Flickr")
_AANE = PygLoader(pyg.AttributedGraphDataset, "AttributedGraph", ("flickr",))

_ALL = (
    _planetoid("Cora", (2_708, 10_556, 1_433, 7), normalize=True),
    _planetoid("CiteSeer", (3_327, 9_104, 3_703, 6), normalize=True),
    _planetoid("PubMed", (19_717, 88_648, 500, 3), normalize=False),
    _coauthor("CS", (18_333, 163_788, 6_805, 15)),
    _coauthor("Physics", (34_493, 495_924, 8_415, 5)),
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
)
ENTRIES = {entry.key: entry for entry in _ALL}
