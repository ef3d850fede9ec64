"""Loads a dataset of the catalogue by name. The first source that has it is used:

1. the cache (``DEEPGAT_CACHE``, else ``$XDG_CACHE_HOME/deepgat``, else ``~/.cache/deepgat``);
2. raw files in the data folder (``DEEPGAT_DATA``), which is never written to;
3. PyG's download.

Sources 2 and 3 are parsed once and then cached.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from deepgat.data.catalogue.cache import (
    DamagedFile,
    cache_folder,
    graph_file,
    read_graphs,
    write_graphs,
)
from deepgat.data.catalogue.entries import ENTRIES, Entry, find_entry
from deepgat.data.dataset import NodeDataset
from deepgat.data.splits import Split, parse_split
from deepgat.data.tables import ReadOptions, looks_like_a_path, read_graph, to_dataset
from deepgat.data.transforms import NormalizeRows, SplitNodes, require_nodes
from deepgat.errors import UserError

PathLike = str | os.PathLike[str]


def load_graph(
    name: PathLike,
    split: str | Split | None = None,
    *,
    data_root: PathLike | None = None,
    cache_dir: PathLike | None = None,
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
        data_root: the folder of raw files, instead of ``DEEPGAT_DATA``.
        cache_dir: the folder for parsed graphs, instead of ``DEEPGAT_CACHE``.
        undirected: make directed graphs (WebKB, Wikipedia, Actor, your graph) undirected.
        download: whether to download a dataset that is not available locally.
        options: fields of :class:`~deepgat.data.ReadOptions`, for your graph.

    Raises:
        UserError: for an unknown name or split, and for a dataset that is not available (the
            message lists the files needed).
    """
    if is_path(name):
        chosen = ReadOptions.of({**options, "undirected": undirected})
        return to_dataset(read_graph(name, chosen), split)
    entry = find_entry(os.fspath(name))
    if options:
        raise UserError(
            f"{next(iter(options))} is an option for your own graph, but {entry.key} is a dataset "
            "of the catalogue: leave it out"
        )
    if split is None:
        split = entry.default_split
    wanted = parse_split(split) if isinstance(split, str) else split
    if entry.built_in:
        graphs = tuple(entry.read(Path()))
    else:
        graphs = _stored_graphs(entry, _data_folder(data_root), cache_folder(cache_dir), download)
    graphs = tuple(_prepared(graph, entry, undirected) for graph in graphs)
    return NodeDataset(
        name=entry.key,
        title=entry.title,
        graphs=_with_split(graphs, wanted, entry),
        num_features=graphs[0].num_features,
        num_classes=entry.classes,
        multi_label=entry.multi_label,
        split=str(wanted),
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

    @property
    def at_hand(self) -> bool:
        return bool(self.source)


def list_datasets(
    *, data_root: PathLike | None = None, cache_dir: PathLike | None = None
) -> list[Listing]:
    """All datasets, and the source of each that is available without the network."""
    folder, cache = _data_folder(data_root), cache_folder(cache_dir)
    return [_listing(entry, folder, cache) for entry in ENTRIES.values()]


def _listing(entry: Entry, folder: Path | None, cache: Path) -> Listing:
    source, path = "", None
    if entry.built_in:
        source = "built in"
    elif graph_file(cache, entry.key).is_file():
        source, path = "cache", graph_file(cache, entry.key)
    elif folder and not _missing(entry, folder):
        source, path = "data folder", folder / entry.folder
    return Listing(
        key=entry.key,
        title=entry.title,
        nodes=entry.nodes,
        edges=entry.edges,
        features=entry.features,
        classes=entry.classes,
        default_split=entry.default_split,
        note=entry.note,
        source=source,
        path=path,
    )


def _data_folder(given: PathLike | None) -> Path | None:
    name = given if given is not None else os.environ.get("DEEPGAT_DATA")
    if not name:
        return None
    if not Path(name).is_dir():
        origin = "data_root" if given is not None else "DEEPGAT_DATA"
        raise UserError(f"{origin} names {os.fspath(name)!r}, which is not a folder")
    return Path(name)


def _missing(entry: Entry, folder: Path) -> list[str]:
    return [file for file in entry.files if not (folder / entry.folder / file).is_file()]


def _prepared(graph: Data, entry: Entry, undirected: bool) -> Data:
    if entry.directed and undirected:
        graph.edge_index = to_undirected(graph.edge_index, num_nodes=graph.num_nodes)
    return NormalizeRows()(graph) if entry.normalize else graph


def _with_split(graphs: tuple[Data, ...], split: Split, entry: Entry) -> tuple[Data, ...]:
    if len(graphs) == 1:
        return (SplitNodes(split, entry.key)(graphs[0]),)
    if split.kind != "public":
        raise UserError(
            f"{entry.title} has {len(graphs)} graphs, each entirely for training, validation or "
            f"test: its only split is 'public', not {str(split)!r}"
        )
    require_nodes(list(graphs), split, entry.key)
    return graphs


def _stored_graphs(
    entry: Entry, folder: Path | None, cache: Path, download: bool
) -> tuple[Data, ...]:
    """Read the cached file, or parse the raw files and cache the result."""
    stored = graph_file(cache, entry.key)
    damaged = ""
    if stored.is_file():
        try:
            return read_graphs(stored)
        except DamagedFile:
            damaged = f"the cached file {stored} is damaged, and "
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as work:
            _provide_raw(entry, folder, Path(work), download, damaged)
            graphs = _read(entry, Path(work))
            write_graphs(stored, graphs)
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {cache} ({error.strerror or error}): set "
            "DEEPGAT_CACHE to a writable folder"
        ) from error
    return read_graphs(stored)


def _read(entry: Entry, work: Path) -> list[Data]:
    try:
        return entry.read(work)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the raw files of {entry.title} cannot be read ({_short(error)}): replace "
            f"{', '.join(entry.files)} by the originals"
        ) from error


def _provide_raw(
    entry: Entry, folder: Path | None, work: Path, download: bool, damaged: str
) -> None:
    """Link the raw files into the work folder, or download them there."""
    if folder and (folder / entry.folder).is_dir():
        if missing := _missing(entry, folder):
            raise UserError(
                f"{damaged}{entry.title} is incomplete: {', '.join(missing)} should be in "
                f"{folder / entry.folder}"
            )
        _link(entry, folder, work)
    elif entry.fetch is None:
        _not_at_hand(entry, damaged, "there is no download for it")
    elif not download:
        _not_at_hand(entry, damaged, "downloading is switched off")
    else:
        try:
            entry.fetch(work)
        except Exception as error:
            _not_at_hand(entry, damaged, f"downloading failed ({_short(error)})", error)


def _link(entry: Entry, folder: Path, work: Path) -> None:
    (work / entry.folder).mkdir(parents=True)
    for file in entry.files:
        original = (folder / entry.folder / file).resolve()
        try:
            (work / entry.folder / file).symlink_to(original)
        except OSError:  # file systems and accounts without links
            shutil.copyfile(original, work / entry.folder / file)


def _not_at_hand(entry: Entry, damaged: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise UserError(
        f"{damaged}{entry.title} is not available locally and {why}: put "
        f"{', '.join(entry.files)} into the folder {entry.folder} of your data folder "
        "(DEEPGAT_DATA)"
    ) from cause


def _short(error: Exception) -> str:
    """The error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__
