"""Predictions for a few nodes from their receptive field: the nodes whose values reach them.

Layer l computes h^l at v from h^(l−1) of the nodes at most s_l hops away and from neighbour lists
whose members are at most e_l hops away (:class:`~deepgat.nn.attention.Reach`). So h^l is needed at
the nodes within R_l hops of the targets, where

    R_L = 0,    R_(l−1) = R_l + s_l,

and layer l runs on the nodes within R_l + e_l hops: the field shrinks from layer to layer. At the
rim of every such graph the lists are incomplete and the outputs wrong, but no target reads those.

The nodes of a field are ordered by their hops, so that a smaller field is a prefix of it: nothing
is searched or gathered between layers. Where the field of the first layers is most of the graph,
these layers run on the whole graph as it is, and only later ones on a field, its core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from deepgat.models.ensemble import Ensemble
from deepgat.models.network import Network
from deepgat.models.outputs import Context, LayerOutputs
from deepgat.ops import Columns, Features, ForwardLists, SparseMatrix, take_rows

SMALLER = 0.8
"""A field is cut to a smaller one of at most this share of its nodes; before, the copy costs more
than it saves."""


@dataclass(frozen=True)
class Radius:
    """How many hops around the targets a network reads."""

    features: int
    """Features of nodes."""
    lists: int
    """Members of neighbour lists; at least ``features``."""


def radius(model: Network) -> Radius:
    """The receptive field of a network; that of an ensemble holds those of all its members.

    Label features z^l of the nodes within R_(l−1) hops are spread over l − 1 hops more.
    """
    if isinstance(model, Ensemble):
        parts = [radius(cast(Network, member)) for member in model.members]
        return Radius(max(part.features for part in parts), max(part.lists for part in parts))
    states = _states(model)
    layers = range(1, model.num_layers + 1)
    lists = max(states[number] + model.reach(number).lists for number in layers)
    for number in range(1, model.label_hops + 1):
        counts = number == 1 and model.first_labels == "neighbor-counts"
        lists = max(lists, states[number - 1] + (1 if counts else number - 1))
    return Radius(states[0], lists)


def _states(model: Network) -> list[int]:
    """R_0 … R_L."""
    found = [0]
    for number in range(model.num_layers, 0, -1):
        found.append(found[-1] + model.reach(number).states)
    return found[::-1]


@dataclass(frozen=True, eq=False)
class Field:
    """The part of a graph around some nodes, the targets: m nodes, on the CPU."""

    neighbors: ForwardLists
    """Complete for nodes that are nearer than ``Radius.lists`` hops."""
    targets: Tensor
    """[k] int64: which of the m nodes."""
    ends: tuple[int, ...] = ()
    """The number of nodes at most 0, 1, … hops from a target; these come first. Empty for a whole
    graph, whose nodes are in any order."""
    label_features: Tensor | None = None
    """z [m, hops, C]."""
    core: tuple[Tensor, Field] | None = None
    """Of a whole graph: the nodes [m'] int64 of a field in it, and that field."""

    def narrowed(self, hops: int) -> tuple[Field, Tensor | int | None]:
        """(the field of at most so many hops, which of the nodes are in it).

        The nodes are numbers [·] int64, or the first so many; None: all, where the field would
        hardly shrink.
        """
        if self.core is not None:
            nodes, core = self.core
            if hops >= len(core.ends):
                return self, None
            field, rows = core.narrowed(hops)
            return field, nodes if rows is None else nodes[:rows]
        if hops >= len(self.ends) or self.ends[hops] > SMALLER * self.ends[-1]:
            return self, None
        rows, z = self.ends[hops], self.label_features
        lists = self.neighbors.first(self.ends[hops - 1] if hops else 0, rows)
        z = None if z is None else z[:rows]
        return Field(lists, self.targets, self.ends[: hops + 1], z), rows

    def context(self, device: torch.device, initial: Tensor | None = None) -> Context:
        z = self.label_features
        return Context(
            self.neighbors.to(device),
            None if z is None else z.to(device),
            initial=initial,
        )


def _taken(h: Tensor | SparseMatrix, rows: Tensor | int | None) -> Tensor | SparseMatrix:
    """The rows of a field that was narrowed."""
    if rows is None:
        return h
    if isinstance(rows, int):
        if isinstance(h, Tensor):
            return h[:rows]
        rows = torch.arange(rows)
    return take_rows(h, rows.to(h.device))


@torch.no_grad()
def run_field(model: Network, x: Features, field: Field) -> LayerOutputs:
    """What ``model.run`` computes for the targets: rows [k, …] of its outputs.

    No state of a layer before the last is kept.

    Args:
        model: in evaluation mode, on any device.
        x: [m, d] on the CPU; rows beyond ``Radius.features`` hops are not read.
        field: of ``radius(model)`` or more, or a whole graph; that, where layers are not local.
    """
    if isinstance(model, Ensemble):
        members = [run_field(cast(Network, member), x, field) for member in model.members]
        logits = model.joined([member.logits for member in members])
        shown = members[model.heaviest]
        layers = shown.layer_logits
        return replace(shown, logits=logits, layer_logits={**layers, max(layers): logits})
    device = next(model.parameters()).device
    states, whole = _states(model), bool(model.graph_wide)
    hidden: list[Tensor] = []
    layer_logits: dict[int, Tensor] = {}
    h: Features = x
    context = Context(field.neighbors)
    for number in range(1, model.num_layers + 1):
        rows: Tensor | int | None = None
        if not whole:
            field, rows = field.narrowed(states[number] + model.reach(number).lists)
        assert not isinstance(h, Columns)
        h = _taken(h, rows)
        if number == 1:
            h = model.encode(model.features(h.to(device)))
            initial = h if model.has_encoder and isinstance(h, Tensor) else None
            context = field.context(device, initial)
        elif rows is not None:
            initial = context.initial
            initial = None if initial is None else cast(Tensor, _taken(initial, rows))
            context = field.context(device, initial)
        targets = field.targets.to(device)
        computed = model.run_layers(range(number, number + 1), h, context)
        h = computed.states[-1]
        last = h.index_select(0, targets)
        hidden = [*hidden, last] if model.reads_every_layer else [last]
        for made, logits in computed.predictions.items():
            layer_logits[made] = logits.index_select(0, targets)
    first = context.initial
    first = None if first is None else first.index_select(0, field.targets.to(device))
    logits = model.readout(hidden, first)
    layer_logits[model.num_layers] = logits
    return LayerOutputs(logits, layer_logits, hidden, initial=first)
