"""Loads a dataset of the catalogue by name. The first source that has it is used:

1. the cache (``DEEPGAT_CACHE``, else ``$XDG_CACHE_HOME/deepgat``, else ``~/.cache/deepgat``);
2. raw files in the data folder (``DEEPGAT_DATA``), which is never written to;
3. PyG's download.

Sources 2 and 3 are parsed once and then cached.
"""

import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from deepgat.data.catalogue.cache import DamagedFile, graph_file, read_graphs, write_graphs
from deepgat.data.catalogue.entries import ENTRIES, Entry, find_entry
from deepgat.data.dataset import NodeDataset
from deepgat.data.feature_matrix import normalize_rows
from deepgat.data.splits import Split, parse_split
from deepgat.data.tables import ReadOptions, read_graph, to_dataset
from deepgat.data.tables.folder import looks_like_a_path
from deepgat.data.tables.opening import one_line, parsing
from deepgat.data.transforms import SplitNodes
from deepgat.errors import UserError

PathLike = str | os.PathLike[str]


def load_graph(
    name: PathLike,
    split: str | Split | None = None,
    *,
    undirected: bool = True,
    download: bool = True,
    **options: Any,
) -> NodeDataset:
    """Load a dataset of the catalogue, or your graph, with a split.

    ``name`` is a path if it contains a slash, or if it exists and is not a name of the catalogue.
    ``docs/own-graph.md`` describes the files of your graph.

    The feature rows of Cora and CiteSeer are divided by their sums, as is usual; other features do
    not change. Self-loops of the raw graph stay in ``edge_index``; the models give every node
    exactly one.

    Args:
        name: a name from :func:`list_datasets`, ignoring case ("cora", "ppi-rebuilt"), or a path.
        split: a text for :func:`parse_split` or a :class:`Split`; None: the dataset's default.
        undirected: make directed graphs (WebKB, Wikipedia, Actor, WikiCS, your graph) undirected;
            the graphs hops-2 … hops-32 stay directed.
        download: whether to download a dataset that is not available locally.
        options: fields of :class:`~deepgat.data.ReadOptions`, for your graph.

    Raises:
        UserError: for an unknown name or split, and for a dataset that is not available (the
            message lists the files needed).
    """
    if is_path(name):
        chosen = ReadOptions.of({**options, "undirected": undirected})
        return to_dataset(read_graph(name, chosen), split)
    try:
        entry = find_entry(os.fspath(name))
    except UserError as error:
        raise UserError(f"{error}; there is no file or folder of that name either") from None
    if options:
        raise UserError(
            f"{next(iter(options))} is an option for your own graph, but {entry.key} is a dataset "
            "of the catalogue: leave it out"
        )
    wanted = entry.default_split if split is None else split
    wanted = parse_split(wanted) if isinstance(wanted, str) else wanted
    graphs = tuple(entry.read(Path())) if entry.built_in else _stored_graphs(entry, download)
    for graph in graphs:
        if entry.directed and undirected:
            graph.edge_index = to_undirected(graph.edge_index, num_nodes=graph.num_nodes)
        if entry.normalize:
            graph.x = normalize_rows(graph.x)
    if len(graphs) == 1:
        graphs = (SplitNodes(wanted, entry.key)(graphs[0]),)
    elif wanted.kind != "public":
        raise UserError(
            f"{entry.title} has {len(graphs)} graphs, each entirely for training, validation or "
            f"test: its only split is 'public', not {str(wanted)!r}"
        )
    return NodeDataset(
        name=entry.key,
        title=entry.title,
        graphs=graphs,
        num_features=graphs[0].num_features,
        num_classes=entry.classes,
        multi_label=entry.multi_label,
        split=str(wanted),
        metric=entry.metric,
    )


def is_path(name: PathLike) -> bool:
    """Whether a name is the path of a graph rather than a dataset of the catalogue."""
    if not isinstance(name, str):
        return True
    return name.strip().lower() not in ENTRIES and looks_like_a_path(name)


@dataclass(frozen=True)
class Listing:
    """One line of the catalogue."""

    key: str
    title: str
    nodes: int
    edges: int | None
    features: int
    classes: int
    default_split: str
    note: str
    source: str
    """Either "built in", "cache" or "data folder"; empty if it is not available locally."""
    path: Path | None
    """The cached file or the folder of raw files."""
    metric: str = "accuracy"

    @property
    def at_hand(self) -> bool:
        return bool(self.source)


def list_datasets() -> list[Listing]:
    """All datasets, and the source of each that is available without the network."""
    folder = _data_folder()
    shared = [field.name for field in fields(Listing) if field.name not in ("source", "path")]
    listings = []
    for entry in ENTRIES.values():
        source, path = "", None
        if entry.built_in:
            source = "built in"
        elif graph_file(entry.key).is_file():
            source, path = "cache", graph_file(entry.key)
        elif folder and not _missing(entry, folder):
            source, path = "data folder", folder / entry.folder
        described = {name: getattr(entry, name) for name in shared}
        listings.append(Listing(**described, source=source, path=path))
    return listings


def _data_folder() -> Path | None:
    name = os.environ.get("DEEPGAT_DATA")
    if not name:
        return None
    if not Path(name).is_dir():
        raise UserError(f"DEEPGAT_DATA names {name!r}, which is not a folder")
    return Path(name)


def _missing(entry: Entry, folder: Path) -> list[str]:
    return [file for file in entry.files if not (folder / entry.folder / file).is_file()]


def _stored_graphs(entry: Entry, download: bool) -> tuple[Data, ...]:
    """Read the cached file, or parse the raw files and cache the result."""
    folder, stored = _data_folder(), graph_file(entry.key)
    if stored.is_file():
        try:
            return read_graphs(stored)
        except DamagedFile:
            pass  # built anew below
    with tempfile.TemporaryDirectory(prefix="deepgat-") as work:
        if folder is None or not (folder / entry.folder).is_dir():
            folder = Path(work)
            _fetch(entry, folder, download)
        elif missing := _missing(entry, folder):
            raise UserError(
                f"{entry.title} is incomplete: {', '.join(missing)} should be in "
                f"{folder / entry.folder}"
            )
        with parsing(
            f"the raw files of {entry.title} cannot be read",
            f"replace {', '.join(entry.files)} by the originals",
        ):
            graphs = entry.read(folder)
    try:
        write_graphs(stored, graphs)
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {stored.parent} ({error.strerror or error}): set "
            "DEEPGAT_CACHE to a writable folder"
        ) from error
    return read_graphs(stored)


def _fetch(entry: Entry, folder: Path, download: bool) -> None:
    """Download the raw files into a folder."""
    cause = None
    if entry.fetch is None:
        why = "there is no download for it"
    elif not download:
        why = "downloading is switched off"
    else:
        try:
            return entry.fetch(folder)
        except Exception as error:
            why, cause = f"downloading failed ({one_line(error)})", error
    raise UserError(
        f"{entry.title} is not available locally and {why}: put {', '.join(entry.files)} into "
        f"the folder {entry.folder} of your data folder (DEEPGAT_DATA)"
    ) from cause
