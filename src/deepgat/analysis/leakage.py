"""Detects label leakage: which labels reach which predictions through a model's inputs.

The inputs are a function of the labels (propagated labels z, or anything that users append). It
need not be differentiable. The check therefore changes labels, prepares the inputs again and runs
the model on them: a prediction that moves depends on a changed label.

Own labels need one pass per node, since the labels of other training nodes may legitimately matter.
The check follows a sample of the training nodes. No probe of all nodes at once is exact: random
directions mix in the legitimate dependence on other nodes, and in small-world graphs few nodes are
far enough apart not to interfere beyond a few layers. Validation and test labels must not matter
at all, so the check changes all of them at once; this part is exhaustive.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.models import Network
from deepgat.ops import Neighbors, SparseMatrix, as_features

HIDDEN_PARTS = ("val", "test")
ROUNDING = 1e-12
"""Changes below this share of a layer's largest logit count as rounding (double precision)."""


InputsOf: TypeAlias = Callable[[Tensor], Sequence[Any]]
"""Labels y, [n] or [n, C], → the arguments of :meth:`Network.run`: features and neighbour lists,
then label features and, for the oracle, labels (None where the model has none)."""


@dataclass(frozen=True, eq=False)
class LeakageReport:
    """The result of :func:`check_leakage`."""

    nodes: Tensor
    """[k]: the training nodes whose own label was changed."""
    training_nodes: int
    layers: list[int]
    """The layers l with a prediction ŷ^l."""
    own_change: Tensor
    """[k, number of layers]: max_c |Δŷ^l_v| when the label of v changes; 0 without leakage."""
    hidden_change: dict[str, Tensor]
    """{"val", "test"}: [number of layers], max over all nodes of |Δŷ^l| when all labels of that
    part change."""

    @property
    def clean(self) -> bool:
        """Whether no label leaks."""
        return not any(change.any() for change in (self.own_change, *self.hidden_change.values()))


def check_leakage(
    model: Network,
    inputs_of: InputsOf,
    y: Tensor,
    masks: Mapping[str, Tensor],
    *,
    nodes: Tensor | int = 16,
    num_classes: int | None = None,
    seed: int = 0,
) -> LeakageReport:
    """Check whether predictions depend on the node's own label, or on validation or test labels.

    A copy of the model runs in double precision and evaluation mode: one pass per checked node, and
    two each for validation and test labels.

    Args:
        model: trained or not; only trained weights make the sizes meaningful.
        inputs_of: prepares the model's inputs from labels, exactly as in training. It is called
            with some labels of y changed.
        y: [n] classes (−1: unlabelled) or [n, C] labels.
        masks: "train", "val" and "test", [n] bool each; a missing part is not checked.
        nodes: the training nodes to check for their own label, or how many to draw.
        num_classes: C; by default the largest class in y plus one.
        seed: of the random nodes and labels.

    Example:
        >>> def inputs_of(y):                                                  # doctest: +SKIP
        ...     graph = copy.copy(dataset.graph); graph.y = y
        ...     graph = PropagateLabels(model.label_hops, model.first_labels, C)(graph)
        ...     return graph.x, neighbors, graph.label_features
        >>> check_leakage(model, inputs_of, graph.y, masks).clean              # doctest: +SKIP
        True
    """
    unknown = set(masks) - {"train", *HIDDEN_PARTS}
    if unknown:
        raise UserError(f"masks has the part {sorted(unknown)[0]!r}: expected train, val and test")
    generator = torch.Generator().manual_seed(seed)
    train = masks.get("train", torch.zeros(len(y), dtype=torch.bool)).cpu().nonzero().view(-1)
    if isinstance(nodes, int):
        nodes = train[torch.randperm(len(train), generator=generator)[:nodes]].sort().values
    if num_classes is None:
        num_classes = y.size(1) if y.dim() == 2 else int(y.max()) + 1 if len(y) else 0
    exact = copy.deepcopy(model).double().eval()
    before = _predictions(exact, *inputs_of(y))
    if not all(logits.isfinite().all() for logits in before.values()):
        raise UserError("the model's predictions are not finite: leakage cannot be traced")

    def changes(chosen: Tensor, partly: bool = False) -> Tensor:
        """[layers, n]: max_c |Δŷ^l_v| where the chosen nodes have other labels."""
        other = _relabel(y, chosen, num_classes, generator, partly)
        after = _predictions(exact, *inputs_of(other))
        found = []
        for layer, logits in before.items():
            change = (after[layer] - logits).abs()
            change[change <= ROUNDING * logits.abs().max()] = 0
            found.append(change.max(1).values.cpu())
        return torch.stack(found)

    own = [changes(nodes[i : i + 1])[:, node] for i, node in enumerate(nodes.tolist())]
    hidden_change = {}
    for part in HIDDEN_PARTS:
        if part in masks:
            group = masks[part].cpu().nonzero().view(-1)
            # A second change, since a single one may preserve a sum of labels.
            both = torch.maximum(changes(group), changes(group, partly=True))
            hidden_change[part] = both.max(1).values
    own_change = torch.stack(own) if own else torch.zeros(0, len(before), dtype=torch.float64)
    return LeakageReport(nodes, len(train), list(before), own_change, hidden_change)


def _predictions(
    model: Network, x: Any, neighbors: Neighbors, z: Tensor | None = None, labels: Any = None
) -> dict[int, Tensor]:
    """{l: ŷ^l [n, C]} in double precision."""
    x = as_features(x)
    if not isinstance(x, Tensor | SparseMatrix):
        raise UserError("x has several blocks: join them into one matrix for the leakage check")
    with torch.no_grad():
        z = None if z is None else z.double()
        outputs = model.run(x.to(torch.float64), neighbors, z, labels)
    return dict(sorted(outputs.layer_logits.items()))


def _relabel(
    y: Tensor, nodes: Tensor, num_classes: int, generator: torch.Generator, partly: bool
) -> Tensor:
    """y with random other labels at ``nodes``.

    Of independent labels, it flips all, or a random half with ``partly``. Flipping all reveals a
    dependence on any single label; flipping half reveals one on their number.
    """
    y, chosen = y.clone(), nodes.to(y.device)
    if y.dim() == 2:
        kept = torch.rand(len(nodes), y.size(1), generator=generator) < partly / 2
        turned = (y[chosen] <= 0).to(y.dtype)
        y[chosen] = torch.where(kept.to(y.device), y[chosen], turned)
    elif num_classes < 2:
        y[chosen] = -1
    else:
        step = torch.randint(1, num_classes, (len(nodes),), generator=generator)
        y[chosen] = (y[chosen] + step.to(y.device, y.dtype)) % num_classes
    return y
