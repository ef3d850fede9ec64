"""Trained models as programs for other runtimes, which need neither deepgat nor its kernels.

``program.py`` is what is exported: the network on its reference operators, with the preparation of
edges and labels before it. ``formats.py`` writes it to a file, and ``verify.py`` compares the file
with the model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from deepgat.errors import UserError, unknown_name
from deepgat.export.formats import EXTENSIONS, FORMATS
from deepgat.export.labels import SPARSE_HOPS
from deepgat.export.program import example_inputs, trace
from deepgat.export.verify import difference, layer_logits
from deepgat.files import check_can_write, write_whole
from deepgat.models import Network
from deepgat.training.run import ModelCard, versions

__all__ = ["FORMATS", "Exported", "check_target", "export_model"]


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    format: str
    inputs: tuple[str, ...]
    """The names of the program's inputs."""
    difference: float | None
    """The largest difference from the network's logits on random graphs; None: could not be run,
    since its runtime is not installed."""
    notes: tuple[str, ...] = ()
    """What the user should know of the program, in sentences."""


def export_model(
    network: Network,
    card: ModelCard,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    sparse: bool = False,
    temperature: float = 1.0,
) -> Exported:
    """Write a trained network as a program; see :meth:`deepgat.Model.export`.

    The file is run on random graphs and compared with the network before it is written.
    """
    target = Path(path)
    name = check_target(target, format)
    kind = FORMATS[name]
    program = trace(network, card, sparse, temperature, checked=kind.compiled)
    about = describe(network, card, program)
    data = kind.write(program, about)
    run = kind.read(data)
    apart = None
    if run is not None:
        apart = difference(network, card, sparse, run, program if kind.compiled else None)
    write_whole(target, data)
    notes = []
    if network.label_hops > SPARSE_HOPS:
        notes.append(
            f"label_hops is {network.label_hops}: beyond {SPARSE_HOPS} the program holds a matrix "
            "of n × n numbers for a graph of n nodes"
        )
    return Exported(target, name, tuple(about["inputs"]), apart, tuple(notes))


def check_target(path: Path, format: str | None = None) -> str:
    """The format of a file to write; refuses what this machine cannot write, before long work."""
    name = format or EXTENSIONS.get(path.suffix.lower())
    if name is None:
        raise UserError(
            f"{path} does not tell its format: name it as {' or '.join(EXTENSIONS)}, or choose "
            f"one of {', '.join(FORMATS)}"
        )
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    check_can_write(path)
    FORMATS[name].check()
    return name


def describe(network: Network, card: ModelCard, program: ExportedProgram) -> dict[str, Any]:
    """What a file tells of itself: the model, its classes and features, inputs and outputs."""
    shapes = {
        "x": ["nodes", card.num_features],
        "x_crow": ["nodes + 1"],
        "x_col": ["stored"],
        "x_value": ["stored"],
        "edge_index": [2, "edges"],
        "edge_weight": ["edges"],
        "edge_attr": ["edges", card.edge_features],
        "known_labels": ["nodes"],
    }
    given = program.example_inputs[1]
    layers = predicting_layers(network, card)
    classes, made_by = card.num_classes, versions()
    return {
        "deepgat": made_by["deepgat"],
        "torch": made_by["torch"],
        "system": card.system,
        "settings": card.settings.to_dict(),
        "class_names": list(card.class_names) or [str(number) for number in range(classes)],
        "feature_names": list(card.feature_names),
        "multi_label": card.multi_label,
        "layers": layers,
        "inputs": {
            name: {"dtype": str(x.dtype).removeprefix("torch."), "shape": shapes[name]}
            for name, x in given.items()
        },
        "outputs": {
            "logits": ["nodes", classes],
            "probabilities": ["nodes", classes],
            "layer_logits": [len(layers), "nodes", classes],
        },
    }


def predicting_layers(network: Network, card: ModelCard) -> list[int]:
    """The layers l that predict classes, in the order of the output ``layer_logits``."""
    with torch.no_grad():
        inputs = example_inputs(network, card, sparse=False, nodes=2, edges=2)
        return sorted(layer_logits(network, inputs))
