"""Trained models on disk: a folder of plain files, written whole or not at all.

``model.safetensors`` holds the weights, ``model.json`` all that is needed to build the model and
load its data again, ``calibration.json`` the temperature and the conformal scores of the validation
nodes, ``metrics.json`` the scores and the training curve, ``predictions.csv`` one line per node,
``README.md`` the model card for people (:mod:`deepgat.model_readme`), which may be missing.
``graph/`` holds the training graph, if it was asked for (:mod:`deepgat.data.kept_folder`). Nothing
is pickled.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor
from torch_geometric.data import Data

from deepgat.analysis import Calibration, predicted_labels
from deepgat.data import FeaturePlan, NodeDataset
from deepgat.data.kept_folder import Expected, read_kept, write_kept
from deepgat.data.kept_graph import KeptGraph
from deepgat.data.tables.opening import opened, parse_json, read_whole
from deepgat.data.transforms import MASKS
from deepgat.distributed import PartDataset
from deepgat.errors import UserError
from deepgat.files import FolderKind, new_folder, to_json, write_whole, writing
from deepgat.model_readme import readme
from deepgat.models import Network, find_system
from deepgat.models.registry import ENSEMBLE, check_memory
from deepgat.training.evaluate import Evaluation
from deepgat.training.recipes import Recipe
from deepgat.training.run import ModelCard, Run, versions
from deepgat.training.search import Request
from deepgat.training.settings import TrainSettings

FORMAT = 2
WEIGHTS = "model.safetensors"
DESCRIPTION = "model.json"
METRICS = "metrics.json"
CALIBRATION = "calibration.json"
PREDICTIONS = "predictions.csv"
README = "README.md"
GRAPH = "graph"
MODEL_FOLDER = FolderKind(
    "model", DESCRIPTION, (WEIGHTS, DESCRIPTION, CALIBRATION, METRICS, PREDICTIONS, README, GRAPH)
)
RECORD_KEYS = {"seed", "micro_f1", "best_epoch", "epochs", "seconds", "stopped"}
"""What a table of runs shows."""
PLAINLY_SHALLOW, SHALLOW = 200, (10, 40)
"""Layers up to which a network is built at once, and those of two that are built to compare."""


def save_run(
    folder: str | os.PathLike[str], run: Run, dataset: NodeDataset, keep_graph: bool = False
) -> Path:
    """Write a trained model, its scores and its predictions as one new folder.

    ``keep_graph`` writes the graph too, so that new nodes can be predicted from the folder alone.
    """
    if keep_graph:
        check_can_keep(dataset)
    weights = save({name: t.detach().cpu() for name, t in run.model.state_dict().items()})
    description = {
        "format": FORMAT,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        **run.card.to_dict(),
        "split_sha256": split_digest(dataset),
        "versions": versions(),
    }
    if run.search is not None:
        description["auto"] = run.search.to_dict()
    record, calibration = run.record(with_curve=True), run.evaluation.calibration
    with new_folder(Path(folder), MODEL_FOLDER) as target:
        if keep_graph:
            description["graph_sha256"] = write_kept(target / GRAPH, dataset)
        (target / WEIGHTS).write_bytes(weights)
        (target / METRICS).write_text(to_json(record, indent=1))
        (target / DESCRIPTION).write_text(to_json(description, indent=1))
        (target / CALIBRATION).write_text(to_json(calibration.to_dict()))
        card = readme(description, record, calibration, dataset)
        (target / README).write_text(card, encoding="utf-8")
        write_predictions(target / PREDICTIONS, dataset, run.evaluation)
    return Path(folder)


def split_digest(dataset: NodeDataset) -> str:
    """A fingerprint of which nodes are for training, for validation and for tests."""
    found = hashlib.sha256()
    for graph in dataset.graphs:
        found.update(f"{graph.num_nodes};".encode())
        for name in MASKS:
            found.update(graph[name].cpu().numpy().tobytes())
    return found.hexdigest()


def read_split_digest(folder: str | os.PathLike[str]) -> str:
    """The fingerprint of the split in training of the model in the folder; "" if it has none."""
    whole = parse_json(read_whole(Path(folder) / DESCRIPTION), DESCRIPTION)
    return str(whole.get("split_sha256", "")) if isinstance(whole, dict) else ""


def load_run(folder: str | os.PathLike[str]) -> tuple[Network, ModelCard]:
    """The model in a folder written by :func:`save_run`, on the CPU, and its card."""
    folder = Path(folder)
    card, digest = _read_description(folder)
    misfit = _damaged(folder, f"{WEIGHTS} does not fit the settings in {DESCRIPTION}")
    altered = _damaged(folder, f"{WEIGHTS} is not the file that was saved")
    with _reading(folder, altered):
        held = _shapes(folder / WEIGHTS)
    try:
        if len(held) < _least_tensors(card):  # before a deep network is built
            raise RuntimeError("too few tensors")
        model = card.outline()
    except UserError as error:
        raise _damaged(folder, f"{DESCRIPTION} describes no network ({error})") from error
    except (RuntimeError, OverflowError, TypeError) as error:  # sizes that torch does not know
        raise misfit from error
    if held != {name: list(x.shape) for name, x in model.state_dict().items()}:
        raise misfit
    with _reading(folder, altered), opened(folder / WEIGHTS) as file:
        check_memory(sum(map(math.prod, held.values())), 2)  # the file and the network
        weights = file.read()
    if hashlib.sha256(weights).hexdigest() != digest:
        raise altered
    try:
        model.load_state_dict(load(weights), assign=True)  # no random numbers are drawn
    except (SafetensorError, RuntimeError) as error:
        raise misfit from error
    return model.eval(), card


@contextmanager
def _reading(folder: Path, altered: UserError) -> Iterator[None]:
    """Blames the file of weights for what cannot be read."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise altered from error
    except UserError as error:
        raise _damaged(folder, f"{WEIGHTS} cannot be read ({error})") from error


def check_can_keep(dataset: NodeDataset) -> None:
    """Refuse data that a model folder cannot keep."""
    if isinstance(dataset, PartDataset) or len(dataset.graphs) != 1:
        raise UserError(
            f"{dataset.title} cannot be kept with the model: a folder keeps one whole graph; leave "
            "keep_graph out"
        )


def keep_graph(folder: Path, dataset: NodeDataset) -> None:
    """Add the training graph to a model folder that lacks it."""
    check_can_keep(dataset)
    description = parse_json(read_whole(folder / DESCRIPTION), DESCRIPTION)
    if "graph_sha256" in description:
        return
    with writing(folder):
        shutil.rmtree(folder / GRAPH, ignore_errors=True)  # of an earlier try that was cut short
        ours = _written_card(folder, description, dataset)
        description["graph_sha256"] = write_kept(folder / GRAPH, dataset)
        write_whole(folder / DESCRIPTION, to_json(description, indent=1))
        if ours:
            write_whole(folder / README, readme(description, *ours, dataset))


def _written_card(
    folder: Path, description: dict[str, Any], dataset: NodeDataset
) -> tuple[dict[str, Any], Calibration] | None:
    """What the card was made of, if it is as it was saved; None if somebody has changed it."""
    try:
        record = parse_json(read_whole(folder / METRICS), METRICS)
        calibration = read_calibration(folder, description["num_classes"])
        card = readme(description, record, calibration, dataset).encode()
        return (record, calibration) if read_whole(folder / README) == card else None
    except (UserError, KeyError, TypeError, AttributeError):  # damaged: it is not ours to mend
        return None


def read_graph(folder: str | os.PathLike[str], card: ModelCard) -> KeptGraph | None:
    """The training graph in the model folder, mapped from disk; None if it was not kept."""
    whole = parse_json(read_whole(Path(folder) / DESCRIPTION), DESCRIPTION)
    digest = whole.get("graph_sha256") if isinstance(whole, dict) else None
    if digest is None:
        return None
    expected = Expected(
        card.num_features, card.num_classes, card.multi_label, card.edge_weights, card.edge_features
    )
    return read_kept(Path(folder) / GRAPH, str(digest), expected)


def _shapes(path: Path) -> dict[str, list[int]]:
    """The names and shapes in the header of a file of weights."""
    with opened(path), safe_open(str(path), "pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118


def _least_tensors(card: ModelCard) -> float:
    """How many tensors a deep network has at least, as two shallow ones tell; 0 of a shallow one.

    Networks without memory for weights take milliseconds per layer to make.
    """
    if card.system == ENSEMBLE:
        total = 0.0
        for member in card.settings.to_dict()["members"]:
            system = find_system(member["system"])
            settings = system.config.with_changes(member["settings"], f"setting of {system.name}")
            total += _least_tensors(replace(card, system=system.name, settings=settings))
        return total
    depth = card.settings.to_dict()["num_layers"]
    if depth <= PLAINLY_SHALLOW:
        return 0
    shallow = [card.settings.with_changes({"num_layers": layers}) for layers in SHALLOW]
    few, more = (len(replace(card, settings=each).outline().state_dict()) for each in shallow)
    return (more - few) / (SHALLOW[1] - SHALLOW[0]) * (depth - SHALLOW[1]) / 2


def saved_record(folder: Path, card: ModelCard) -> dict[str, Any] | None:
    """The record of a finished run of this very card in the folder, if there is one."""
    try:
        _, found = load_run(folder)
        read_calibration(folder, found.num_classes)
        record = parse_json(read_whole(folder / METRICS), METRICS)
    except (OSError, UserError):
        return None
    whole = isinstance(record, dict) and record.keys() >= RECORD_KEYS
    same = whole and card in (found, _as_asked(found, record))
    return record if same and record["stopped"] != "interrupted" else None


def read_search(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What ``auto`` tried before it made the model in the folder; empty if it was named."""
    whole = parse_json(read_whole(Path(folder) / DESCRIPTION), DESCRIPTION)
    found = whole.get("auto", {}) if isinstance(whole, dict) else None
    rows = found.get("leaderboard", []) if isinstance(found, dict) else None
    if (
        found is None
        or not isinstance(rows, list)
        or not all(isinstance(row, dict) for row in rows)
    ):
        raise _damaged(Path(folder), f"{DESCRIPTION} has no readable leaderboard")
    return dict(found or {})


def read_calibration(folder: str | os.PathLike[str], num_classes: int) -> Calibration:
    """The temperature and the conformal scores of the model in the folder."""
    try:
        plain = parse_json(read_whole(Path(folder) / CALIBRATION), CALIBRATION)
        return Calibration.of(plain, num_classes)
    except (UserError, ValueError) as error:
        raise _damaged(Path(folder), f"{CALIBRATION} cannot be read ({error})") from error


def saved_auto_record(
    folder: Path, data: NodeDataset, request: Request, seed: int
) -> dict[str, Any] | None:
    """As :func:`saved_record`, of a finished search for a recipe for this data."""
    try:
        _, found = load_run(folder)
        asked = read_search(folder).get("request")
    except (OSError, UserError):
        return None
    plan = Recipe(found.system, found.settings, found.training)
    same = (
        asked == parse_json(to_json(request.to_dict()), "request") and found.training.seed == seed
    )
    return saved_record(folder, ModelCard.of(data, plan)) if same else None


def _as_asked(card: ModelCard, record: dict[str, Any]) -> ModelCard:
    """The card with the training settings that scarce memory has replaced."""
    try:
        asked = card.training.with_changes(record.get("memory", {})["asked"])
    except (KeyError, TypeError, UserError):  # there are none, or it is no record of ours
        return card
    return replace(card, training=asked)


def is_model_folder(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file()


def write_predictions(path: Path, dataset: NodeDataset, evaluation: Evaluation) -> None:
    """One line per node: its part of the split, label, prediction and calibrated probabilities.

    Several labels of one node are joined by semicolons; an unknown label is left empty. Nodes and
    classes of a user's own graph have their names; a name that a spreadsheet would take for a
    formula gets an apostrophe before it.
    """
    names = list(dataset.class_names) or [str(c) for c in range(dataset.num_classes)]
    columns = ["graph", "node", "part", "label", "prediction"]
    columns += [f"p:{name}" if dataset.class_names else f"p{name}" for name in names]
    ids = dataset.node_ids
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        pairs = zip(dataset.graphs, evaluation.logits, strict=True)
        for number, (graph, logits) in enumerate(pairs):
            probabilities = evaluation.calibration.probabilities(logits, dataset.multi_label)
            predictions = predicted_labels(logits, dataset.multi_label)
            rows = zip(
                _parts(graph),
                label_texts(graph.y, names.__getitem__),
                label_texts(predictions, names.__getitem__),
                probabilities.tolist(),
                strict=True,
            )
            for node, (part, label, prediction, shares) in enumerate(rows):
                numbers = [f"{share:.6g}" for share in shares]
                texts = [ids[node] if ids else str(node), part, label, prediction]
                writer.writerow([number, *map(harmless, texts), *numbers])


def label_texts(labels: Tensor, name_of: Callable[[int], str]) -> list[str]:
    """Names of the labels [n], empty where unknown (−1), or of each row of [n, C], joined by ;."""
    if labels.dim() == 1:
        return ["" if label == -1 else name_of(label) for label in labels.tolist()]
    return [";".join(name_of(c) for c in row.nonzero().view(-1).tolist()) for row in labels]


def harmless(text: str) -> str:
    """A text for a CSV cell: one that spreadsheets would run as a formula gets an apostrophe."""
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return text
    try:
        float(text)
    except ValueError:
        return "'" + text
    return text


def _read_description(folder: Path) -> tuple[ModelCard, str]:
    try:
        text = read_whole(folder / DESCRIPTION).decode()
    except (UserError, UnicodeDecodeError) as error:
        raise UserError(
            f"{folder} is not a model folder: it has no readable {DESCRIPTION}; "
            "save one with Model.save or deepgat train"
        ) from error
    try:
        found = parse_json(text, DESCRIPTION)
        number = found["format"]
    except (UserError, KeyError, TypeError) as error:
        raise _damaged(folder, f"{DESCRIPTION} is not the JSON that was saved") from error
    if number != FORMAT:
        remedy = "train the model again with this version" if number == 1 else "upgrade deepgat"
        raise UserError(
            f"{folder} has model format {number!r} but this deepgat reads format {FORMAT}: {remedy}"
        )
    try:
        plain = {field.name: found[field.name] for field in fields(ModelCard)}
        for name, hint in get_type_hints(ModelCard).items():
            kind = get_origin(hint) or hint
            if name not in ("settings", "training") and type(plain[name]) is not kind:
                raise TypeError(f"{name} is {plain[name]!r}")
        for name in ("class_names", "feature_names"):
            if odd := [text for text in plain[name] if not isinstance(text, str)]:
                raise TypeError(f"{name} holds {odd[0]!r}, which is no text")
        if len(plain["class_names"]) not in (0, plain["num_classes"]):
            raise TypeError(f"{len(plain['class_names'])} names for {plain['num_classes']} classes")
        FeaturePlan.of(plain["feature_plan"])  # which refuses what is none
        plain["settings"] = find_system(plain["system"]).network.Config(**plain["settings"])
        plain["training"] = TrainSettings(**plain["training"])
        return ModelCard(**plain), found["weights_sha256"]
    except (KeyError, TypeError, UserError) as error:
        raise _damaged(folder, f"{DESCRIPTION} lacks or misnames a setting ({error})") from error


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(f"the model folder {folder} is damaged: {what}; train the model again")


def _parts(graph: Data) -> list[str]:
    """ "train", "val", "test" or nothing, per node."""
    names = [""] * graph.num_nodes
    for part in ("train", "val", "test"):
        for node in graph[f"{part}_mask"].nonzero().view(-1).tolist():
            names[node] = part
    return names
