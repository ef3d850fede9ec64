"""Predictions for a few nodes from their receptive field: the nodes whose values reach them.

Layer l computes h^l at v from h^(l−1) of the nodes at most s_l hops away and from neighbour lists
whose members are at most e_l hops away (:class:`~deepgat.nn.attention.Reach`). So h^l is needed at
the nodes within R_l hops of the targets, where

    R_L = 0,    R_(l−1) = R_l + s_l,

and layer l runs on the nodes within R_l + e_l hops: the field shrinks from layer to layer. At the
rim of every such graph the lists are incomplete and the outputs wrong, but no target reads those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from deepgat.models.ensemble import Ensemble
from deepgat.models.network import Network
from deepgat.models.outputs import Context, LayerOutputs
from deepgat.ops import Columns, Features, Neighbors, take_rows
from deepgat.ops.sampling import no_places, sublists

WORTH = 0.8
"""The field shrinks once it would have at most this share of its nodes; before, copying costs more
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

    neighbors: Neighbors
    """Complete for nodes that are nearer than ``Radius.lists`` hops."""
    distance: Tensor
    """[m]: hops from the nearest target."""
    targets: Tensor
    """[k] int64: which of the m nodes."""
    label_features: Tensor | None = None
    """z [m, hops, C]."""

    def within(self, hops: int) -> Tensor | None:
        """[·] int64: the nodes at most so many hops away; None if those are nearly all."""
        near = self.distance <= hops
        return None if int(near.sum()) > WORTH * len(near) else near.nonzero().view(-1)

    def take(self, rows: Tensor) -> Field:
        """The field of these nodes alone, ascending, the targets among them."""
        z = self.label_features
        return Field(
            sublists(self.neighbors, rows, no_places(len(self.distance))),
            self.distance[rows],
            torch.searchsorted(rows, self.targets),
            None if z is None else z[rows],
        )

    def context(self, device: torch.device, initial: Tensor | None = None) -> Context:
        z = self.label_features
        return Context(
            self.neighbors.to(device),
            None if z is None else z.to(device),
            initial=initial,
        )


@torch.no_grad()
def run_field(model: Network, x: Features, field: Field) -> LayerOutputs:
    """What ``model.run`` computes for the targets: rows [k, …] of its outputs.

    No state of a layer before the last is kept.

    Args:
        model: in evaluation mode, on any device.
        x: [m, d] on the CPU; rows beyond ``Radius.features`` hops are not read.
        field: of ``radius(model)`` or more; the whole graph where layers are not local.
    """
    if isinstance(model, Ensemble):
        members = [run_field(cast(Network, member), x, field) for member in model.members]
        logits = model.joined([member.logits for member in members])
        spoken = members[model.heaviest]
        layers = spoken.layer_logits
        return replace(spoken, logits=logits, layer_logits={**layers, max(layers): logits})
    device = next(model.parameters()).device
    states, whole = _states(model), bool(model.graph_wide)
    hidden: list[Tensor] = []
    layer_logits: dict[int, Tensor] = {}
    h: Features = x
    context = Context(field.neighbors)
    for number in range(1, model.num_layers + 1):
        rows = None if whole else field.within(states[number] + model.reach(number).lists)
        assert not isinstance(h, Columns)
        if rows is not None:
            field = field.take(rows)
            h = take_rows(h, rows.to(h.device))
        if number == 1:
            h = model.encode(model.features(h.to(device)))
            initial = h if model.has_encoder and isinstance(h, Tensor) else None
            context = field.context(device, initial)
        elif rows is not None:
            initial = context.initial
            initial = None if initial is None else initial.index_select(0, rows.to(device))
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
