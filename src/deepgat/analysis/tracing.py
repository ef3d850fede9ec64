"""Traces a changed label through a model's inputs to its predictions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.models import Network
from deepgat.ops import Features, Neighbors, SparseMatrix, as_features

ROUNDING = 1e-12
"""Changes below this share of a layer's largest logit count as rounding (double precision)."""


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """The inputs of :meth:`Network.run`."""

    x: Features
    neighbors: Neighbors
    label_features: Tensor | None = None
    labels: Tensor | None = None
    """The true labels, for the oracle only."""


InputsOf: TypeAlias = Callable[[Tensor], ModelInputs]
"""Prepares a model's inputs from labels y, [n] or [n, C]."""


@dataclass(frozen=True)
class LeakPath:
    """The path of a label to a prediction, at the first layer that it reaches."""

    label: str
    """"own" (of a training node, to its own prediction), "val" or "test"."""
    node: int
    """The node whose label changed."""
    reaches: int
    """The node whose prediction moves; of several, the one that moves most."""
    layer: int
    """The first layer l whose prediction ŷ^l moves."""
    change: float
    """max_c |Δŷ^l_c| of the logits."""
    gradient: float | None
    """d ŷ^l_c / d label along the change, for the class c that moves most; None if the input has
    no gradient (sparse features, the oracle's labels)."""
    through: str
    """The main input on the path: "x", "label_features", "labels" or "neighbors"."""
    carrier: int
    """The node u whose input carries the label; of those on a shortest path, the strongest."""
    hops: int | None
    """Edges from ``node`` to u and on to ``reaches``; None if no path joins them (a statistic over
    all nodes, for example)."""


@dataclass(frozen=True, eq=False)
class Response:
    """Changed inputs and the model's logits on them."""

    inputs: ModelInputs
    moved: dict[str, Tensor]
    """For each input that differs: the rows that do, [n] bool."""
    logits: list[Tensor]


class Tracer:
    """Compares the model on changed labels with the model on the true labels."""

    def __init__(self, model: Network, inputs_of: InputsOf, y: Tensor) -> None:
        self.model = copy.deepcopy(model).double().eval().requires_grad_(False)
        self.inputs_of = inputs_of
        self.base = _in_double(inputs_of(y))
        self.leaves = {
            name: value.detach().clone().requires_grad_()
            for name in ("x", "label_features")
            if isinstance(value := getattr(self.base, name), Tensor)
        }
        leaves: dict[str, Any] = self.leaves
        with torch.enable_grad():
            outputs = self._run(replace(self.base, **leaves))
        self.layers = sorted(outputs)
        self.logits = [outputs[layer] for layer in self.layers]
        if not all(logits.isfinite().all() for logits in self.logits):
            raise UserError("the model's predictions are not finite: leakage cannot be traced")
        self.listens = _lists(self.base.neighbors)

    def respond(self, y: Tensor) -> Response | None:
        """Run the model with other labels; None if its inputs do not change."""
        inputs = _in_double(self.inputs_of(y))
        moved = _moved_rows(self.base, inputs)
        if not moved:
            return None
        with torch.no_grad():
            outputs = self._run(inputs)
        return Response(inputs, moved, [outputs[layer] for layer in self.layers])

    def change_at(self, response: Response, node: int) -> Tensor:
        """[layers]: max_c |Δŷ^l| at one node."""
        return torch.stack([each[node].max() for each in self._changes(response)]).cpu()

    def largest_change(self, response: Response) -> Tensor:
        """[layers]: max over nodes and classes."""
        return torch.stack([each.max() for each in self._changes(response)]).cpu()

    def most_moved(self, response: Response) -> int:
        """The node whose prediction moves most, at the first layer where any does."""
        changes = self._changes(response)
        first = next(each for each in changes if each.any())
        return int(first.max(1).values.argmax())

    def path(self, label: str, node: int, reaches: int, response: Response) -> LeakPath:
        """The path from the label of ``node`` to the prediction of ``reaches``."""
        changes = self._changes(response)
        place = next(i for i, each in enumerate(changes) if each[reaches].any())
        category = int(changes[place][reaches].argmax())
        through = self._main_input(response, place, reaches)
        parts = self._parts(response, through, place, reaches, category)
        # Without a nonzero gradient, any row that differs may carry the label.
        weight = (response.moved[through].double() if parts is None else parts.abs()).cpu().numpy()
        hops = np.where(weight > 0, self._hops(node, reaches), np.inf)
        carrier = int(np.where(hops == hops.min(), weight, -1).argmax())
        return LeakPath(
            label=label,
            node=node,
            reaches=reaches,
            layer=self.layers[place],
            change=changes[place][reaches].max().item(),
            gradient=None if parts is None else parts.sum().item(),
            through=through,
            carrier=carrier,
            hops=int(hops.min()) if math.isfinite(hops.min()) else None,
        )

    def _main_input(self, response: Response, place: int, reaches: int) -> str:
        """The input whose change alone moves the prediction most."""
        effect = {}
        for name in response.moved:
            if len(response.moved) == 1:
                return name
            alone: dict[str, Any] = {name: getattr(response.inputs, name)}
            with torch.no_grad():
                logits = self._run(replace(self.base, **alone))[self.layers[place]]
            effect[name] = (logits - self.logits[place])[reaches].abs().max().item()
        return max(effect, key=lambda name: effect[name])

    def _parts(
        self, response: Response, name: str, place: int, reaches: int, category: int
    ) -> Tensor | None:
        """<∂ŷ/∂input_u, Δinput_u> for every node u, [n]; None without a nonzero gradient."""
        if name not in self.leaves or not self.logits[place].requires_grad:
            return None
        (gradient,) = torch.autograd.grad(
            self.logits[place][reaches, category],
            self.leaves[name],
            retain_graph=True,
            allow_unused=True,
        )
        if gradient is None:
            return None
        step = getattr(response.inputs, name) - self.leaves[name].detach()
        parts = (gradient * step).flatten(1).sum(1)
        return parts if parts.any() else None

    def _changes(self, response: Response) -> list[Tensor]:
        """|Δŷ^l| [n, C] per layer, with rounding errors set to 0."""
        found = []
        for before, after in zip(self.logits, response.logits, strict=True):
            change = (after - before.detach()).abs()
            noise = ROUNDING * before.detach().abs().max()
            found.append(torch.where(change > noise, change, 0.0))
        return found

    def _run(self, inputs: ModelInputs) -> dict[int, Tensor]:
        outputs = self.model.run(inputs.x, inputs.neighbors, inputs.label_features, inputs.labels)
        return outputs.layer_logits

    def _hops(self, node: int, reaches: int) -> np.ndarray:
        """[n]: edges from ``node`` to u plus edges from u to ``reaches``, for every node u."""
        from scipy.sparse.csgraph import dijkstra

        arriving = dijkstra(self.listens.T.tocsr(), indices=node, unweighted=True)
        leaving = dijkstra(self.listens, indices=reaches, unweighted=True)
        return np.asarray(arriving + leaving)


class Relabel:
    """Gives some nodes random labels that differ from their own."""

    def __init__(self, y: Tensor, num_classes: int, generator: torch.Generator) -> None:
        self.y = y
        self.num_classes = num_classes
        self.generator = generator

    def __call__(self, nodes: Tensor, partly: bool = False) -> Tensor:
        """y with other labels at ``nodes``.

        Of independent labels, it flips all, or a random half with ``partly``. Flipping all reveals
        a dependence on any single label; flipping half reveals one on their number.
        """
        y = self.y.clone()
        chosen = nodes.to(y.device)
        if y.dim() == 2:
            kept = torch.rand(len(nodes), y.size(1), generator=self.generator) < partly / 2
            turned = (y[chosen] <= 0).to(y.dtype)
            y[chosen] = torch.where(kept.to(y.device), y[chosen], turned)
        elif self.num_classes < 2:
            y[chosen] = -1
        else:
            step = torch.randint(1, self.num_classes, (len(nodes),), generator=self.generator)
            y[chosen] = (y[chosen] + step.to(y.device, y.dtype)) % self.num_classes
        return y


def _in_double(inputs: ModelInputs) -> ModelInputs:
    x = as_features(inputs.x)
    if not isinstance(x, Tensor | SparseMatrix):
        raise UserError("x has several blocks: join them into one matrix for the leakage check")
    z = inputs.label_features
    return replace(inputs, x=x.to(torch.float64), label_features=None if z is None else z.double())


def _moved_rows(before: ModelInputs, after: ModelInputs) -> dict[str, Tensor]:
    """The rows that differ, for each input that does."""
    moved = {}
    lists = _lists(before.neighbors), _lists(after.neighbors)
    if lists[0].shape != lists[1].shape:
        raise UserError("inputs_of returns a different number of nodes for other labels")
    if (rows := _unequal_rows(*lists)).any():
        moved["neighbors"] = rows
    for name in ("x", "label_features", "labels"):
        a, b = getattr(before, name), getattr(after, name)
        if a is None and b is None:
            continue
        rows = _differing_rows(a, b, name)
        if rows.any():
            moved[name] = rows
    return moved


def _differing_rows(a: Tensor | SparseMatrix, b: Tensor | SparseMatrix, name: str) -> Tensor:
    if type(a) is not type(b) or tuple(a.shape) != tuple(b.shape):
        raise UserError(f"inputs_of returns {name} with a different shape or type for other labels")
    if isinstance(a, SparseMatrix):
        assert isinstance(b, SparseMatrix)
        return _unequal_rows(_scipy(a), _scipy(b))
    assert isinstance(b, Tensor)
    unequal = (a != b) & ~((a != a) & (b != b))  # NaN equals NaN here
    return unequal.flatten(1).any(1) if a.dim() > 1 else unequal


def _scipy(x: SparseMatrix) -> sp.csr_matrix:
    parts = (x.values.cpu().numpy(), x.rows.entries.cpu().numpy(), x.rows.ptr.cpu().numpy())
    return sp.csr_matrix(parts, shape=x.shape)


def _lists(neighbors: Neighbors) -> sp.csr_matrix:
    """Row v has ones at u ∈ N_v."""
    near = neighbors.to("cpu")
    ones = np.ones(near.num_edges)
    return sp.csr_matrix((ones, near.source.numpy(), near.ptr.numpy()), shape=(near.num_nodes,) * 2)


def _unequal_rows(a: sp.csr_matrix, b: sp.csr_matrix) -> Tensor:
    return torch.from_numpy(np.asarray((a != b).sum(1)).ravel() > 0)
