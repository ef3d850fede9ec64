"""Whether a file computes what its model does, on small graphs of several shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.export import ExportedProgram

from deepgat.data.feature_matrix import csr_tensor
from deepgat.data.label_features import one_hot_labels, propagate_labels
from deepgat.errors import UserError
from deepgat.export.program import example_inputs
from deepgat.export.running import Run
from deepgat.models import Network
from deepgat.ops import weighted_neighbors
from deepgat.training.run import ModelCard

TOLERANCE = 1e-4
"""How far logits may be from the network's, relative to the largest; rounding explains 1e-6."""
COMPILED = 1e-5
"""The same for compiled logits and those of the program that was compiled."""
SIZES = ((29, 83), (1, 0), (1, 3), (5, 0), (6, 9))
"""(nodes, edges) of the graphs. They have isolated nodes, self-loops, repeats, weights of 0."""


def difference(
    network: Network,
    card: ModelCard,
    sparse: bool,
    run: Run,
    compiled_from: ExportedProgram | None = None,
) -> float:
    """The largest difference between a file's logits and the network's.

    Raises:
        UserError: compiled logits are not those of the program that was compiled.
        RuntimeError: the logits are not those of the network.
    """
    program = None if compiled_from is None else compiled_from.module()
    worst = 0.0
    for inputs in graphs(network, card, sparse):
        with torch.no_grad():
            found = run(inputs)["layer_logits"]
            layers = layer_logits(network, inputs)
            if program is not None:
                _compare_compiled(found, program(**inputs)["layer_logits"], inputs)
        wanted = torch.stack([layers[number] for number in sorted(layers)])
        apart = float((found - wanted).abs().max())
        if not apart <= TOLERANCE * max(1.0, float(wanted.abs().max())):
            raise RuntimeError(
                f"the exported program's logits differ from the model's by {apart:.3g}: this is a "
                "bug of deepgat or of a converter; nothing was written"
            )
        worst = max(worst, apart)
    return worst


def graphs(network: Network, card: ModelCard, sparse: bool) -> Iterator[dict[str, Tensor]]:
    """Inputs of all sizes, contiguous and with other strides."""
    for nodes, edges in SIZES:
        inputs = example_inputs(network, card, sparse, nodes, edges)
        yield inputs
        yield {name: _strided(x) for name, x in inputs.items()}


def _strided(x: Tensor) -> Tensor:
    """The same numbers with other strides: a transposed matrix, or a column of one."""
    return x.T.contiguous().T if x.dim() == 2 else torch.stack([x, x], 1)[:, 0]


def _compare_compiled(found: Tensor, wanted: Tensor, inputs: dict[str, Tensor]) -> None:
    apart = float((found - wanted).abs().max())
    if not apart <= COMPILED * max(1.0, float(wanted.abs().max())):
        nodes, edges = wanted.size(1), inputs["edge_index"].size(1)
        raise UserError(
            f"the compiled program's logits are off by {apart:.3g} for a graph of {nodes} nodes "
            f"and {edges} edges, because torch {torch.__version__} or the C++ compiler compiles it "
            "wrongly: nothing was written; export the model as pt2 or onnx"
        )


def layer_logits(network: Network, inputs: dict[str, Tensor]) -> dict[int, Tensor]:
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
