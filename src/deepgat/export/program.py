"""The program that is exported: from a graph to the logits of every layer that predicts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from deepgat.errors import UserError
from deepgat.export.checked import checked, checked_if_given, checked_numbers
from deepgat.export.labels import propagated_labels
from deepgat.export.running import quiet
from deepgat.models import Network
from deepgat.ops import Features, use_backend
from deepgat.ops.edge_list import EdgeList
from deepgat.ops.sparse_rows import SparseRows
from deepgat.training.run import ModelCard

OUTPUTS = ("logits", "probabilities", "layer_logits")


class Program(nn.Module):
    """A network with all that turns raw inputs into its own, and its logits into probabilities.

    Shapes: x [n, d] float32, edge_index [2, E] int64, edge_weight [E], edge_attr [E, k],
    known_labels [n] int64 with −1 where the label is not known → logits and probabilities [n, C],
    layer_logits [layers that predict, n, C], the last of which is the logits.

    With ``checked`` the program checks its inputs, for runtimes that do not.
    """

    def __init__(self, network: Network, temperature: float = 1.0, checked: bool = False) -> None:
        super().__init__()
        self.network = network
        self.temperature = temperature
        self.checked = checked

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        known_labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        if self.checked:
            x = checked(x)
        return self.run(x, edge_index, edge_weight, edge_attr, known_labels)

    def run(
        self,
        x: Features,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        edge_attr: Tensor | None,
        known_labels: Tensor | None,
    ) -> dict[str, Tensor]:
        network = self.network
        if self.checked:
            edge_index = checked_numbers(checked(edge_index).flatten(), x.size(0)).view(2, -1)
            edge_weight, edge_attr = checked_if_given(edge_weight), checked_if_given(edge_attr)
            known_labels = checked_if_given(known_labels)
        edges = EdgeList.of(edge_index, x.size(0), edge_weight, edge_attr)
        z = None
        if known_labels is not None:
            z = propagated_labels(
                edges,
                known_labels,
                network.out_channels,
                network.label_hops,
                network.first_labels,
            )
        found = network.run(x, edges, z)
        logits = found.logits
        scaled = logits / self.temperature
        shares = scaled.sigmoid() if network.multi_label else scaled.softmax(-1)
        layers = [found.layer_logits[number] for number in sorted(found.layer_logits)]
        return dict(zip(OUTPUTS, (logits, shares, torch.stack(layers)), strict=True))


class SparseProgram(Program):
    """The same for sparse features: the three tensors of a CSR matrix [n, d] in place of x.

    Shapes: x_crow [n + 1] and x_col [nnz] int64, x_value [nnz] float32.
    """

    def forward(  # type: ignore[override]
        self,
        x_crow: Tensor,
        x_col: Tensor,
        x_value: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        known_labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        width = self.network.in_channels
        if self.checked:
            x_crow = checked_numbers(checked(x_crow), x_col.size(0) + 1)
            x_col = checked_numbers(checked(x_col), width)
            x_value = checked(x_value)
        x = SparseRows.of(x_crow, x_col, x_value, width)
        if self.checked:
            x = replace(x, row=checked_numbers(x.row, x.size(0)))
        return self.run(x, edge_index, edge_weight, edge_attr, known_labels)


def example_inputs(
    network: Network, card: ModelCard, sparse: bool, nodes: int = 11, edges: int = 37
) -> dict[str, Tensor]:
    """Random inputs by their names: repeated edges, self-loops, isolated nodes, weights of 0."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(nodes, network.in_channels, generator=draw)
    inputs = {"x": x}
    if sparse:
        with quiet():
            rows = (x * (x > 0.5)).to_sparse_csr()
        parts = rows.crow_indices(), rows.col_indices(), rows.values()
        names = ("x_crow", "x_col", "x_value")
        inputs = {name: part.clone() for name, part in zip(names, parts, strict=True)}
    linked = max(1, nodes - 2)
    edge_index = torch.randint(linked, (2, edges), generator=draw)
    edge_index[:, -1:] = edge_index[:, :1]
    inputs["edge_index"] = edge_index
    if card.edge_weights:
        inputs["edge_weight"] = torch.rand(edges, generator=draw)
        inputs["edge_weight"][::5] = 0
    if card.edge_features:
        inputs["edge_attr"] = torch.randn(edges, card.edge_features, generator=draw)
    if network.label_hops:
        known = torch.randint(-1, network.out_channels, (nodes,), generator=draw)
        inputs["known_labels"] = known
    return inputs


def dynamic_shapes(inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Which sizes of the inputs may change: the numbers of nodes, edges and stored features."""
    nodes, edges, stored = Dim("nodes", min=1), Dim("edges", min=0), Dim("stored", min=0)
    known: dict[str, Any] = {
        "x": {0: nodes},
        "x_crow": {0: nodes + 1},
        "x_col": {0: stored},
        "x_value": {0: stored},
        "edge_index": {1: edges},
        "edge_weight": {0: edges},
        "edge_attr": {0: edges},
        "known_labels": {0: nodes},
    }
    return {name: known[name] for name in inputs}


def trace(
    network: Network,
    card: ModelCard,
    sparse: bool = False,
    temperature: float = 1.0,
    checked: bool = False,
) -> ExportedProgram:
    """The network as a program of torch's own operators, on the CPU, for graphs of any size."""
    if network.needs_labels:
        raise UserError(
            f"{card.system} reads the true label of every node, so it predicts nothing: export "
            "another system"
        )
    alone = copy.deepcopy(network).cpu().eval().requires_grad_(False)
    program = (SparseProgram if sparse else Program)(alone, temperature, checked).eval()
    inputs = example_inputs(alone, card, sparse)
    with use_backend("reference"), quiet():
        found = torch.export.export(
            program, (), inputs, dynamic_shapes=dynamic_shapes(inputs), strict=False
        )
    for node in found.graph.nodes:
        node.meta.pop("stack_trace", None)  # the paths of this machine
    return found
