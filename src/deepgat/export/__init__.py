"""Trained models as programs for other runtimes, which need neither deepgat nor its kernels.

``program.py`` is what is exported: the network on its reference operators, with the preparation of
edges and labels before it. ``formats.py`` writes it to a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from deepgat.data.feature_matrix import csr_tensor
from deepgat.data.label_features import one_hot_labels, propagate_labels
from deepgat.errors import UserError, unknown_name
from deepgat.export.formats import EXTENSIONS, FORMATS, Run
from deepgat.export.labels import SPARSE_HOPS
from deepgat.export.program import example_inputs, trace
from deepgat.files import check_can_write, write_whole
from deepgat.models import Network
from deepgat.ops import weighted_neighbors
from deepgat.training.run import ModelCard, versions

__all__ = ["FORMATS", "Exported", "check_target", "export_model"]

TOLERANCE = 1e-4
"""How far logits may be from the network's, relative to the largest; rounding explains 1e-6."""


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    format: str
    inputs: tuple[str, ...]
    """The names of the program's inputs."""
    difference: float | None
    """The largest difference from the network's logits on a random graph; None: could not be run,
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

    The file is run once, on a random graph, and compared with the network before it is written.
    """
    target = Path(path)
    name = check_target(target, format)
    kind = FORMATS[name]
    program = trace(network, card, sparse, temperature)
    about = describe(network, card, program)
    data = kind.write(program, about)
    difference = _difference(network, card, sparse, kind.read(data))
    write_whole(target, data)
    notes = []
    if network.label_hops > SPARSE_HOPS:
        notes.append(
            f"label_hops is {network.label_hops}: beyond {SPARSE_HOPS} the program holds a matrix "
            "of n × n numbers for a graph of n nodes"
        )
    return Exported(target, name, tuple(about["inputs"]), difference, tuple(notes))


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
        return sorted(_layer_logits(network, inputs))


def _difference(network: Network, card: ModelCard, sparse: bool, run: Run | None) -> float | None:
    """The largest difference between a file's logits and the network's, on a random graph."""
    if run is None:
        return None
    inputs = example_inputs(network, card, sparse, nodes=29, edges=83)
    with torch.no_grad():
        found = run(inputs)
        layers = _layer_logits(network, inputs)
    wanted = torch.stack([layers[number] for number in sorted(layers)])
    apart = float((found["layer_logits"] - wanted).abs().max())
    if not apart <= TOLERANCE * max(1.0, float(wanted.abs().max())):
        raise RuntimeError(
            f"the exported program's logits differ from the model's by {apart:.3g}: this is a bug "
            "of deepgat or of a converter; nothing was written"
        )
    return apart


def _layer_logits(network: Network, inputs: dict[str, Tensor]) -> dict[int, Tensor]:
    """{l: [n, C]}: what the network itself computes, on the CPU."""
    device = next(network.parameters()).device
    edge_index = inputs["edge_index"]
    if "x" in inputs:
        x = inputs["x"]
    else:
        parts = inputs["x_crow"], inputs["x_col"], inputs["x_value"]
        x = csr_tensor(*parts, network.in_channels)
    neighbors = weighted_neighbors(
        edge_index, x.size(0), inputs.get("edge_weight"), inputs.get("edge_attr")
    )
    z = None
    if network.label_hops:
        known = inputs["known_labels"]
        Y = one_hot_labels(known, known >= 0, network.out_channels)
        z = propagate_labels(edge_index, Y, len(known), network.label_hops, network.first_labels)
        z = z.to(device)
    network.eval()
    found = network.run(x.to(device), neighbors.to(device), z)
    return {number: logits.float().cpu() for number, logits in found.layer_logits.items()}
