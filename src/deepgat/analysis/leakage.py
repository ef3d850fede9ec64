"""Detects label leakage: which labels reach which predictions through a model's inputs.

The inputs are a function of the labels (propagated labels z, or anything that users append). It
need not be differentiable. The check therefore changes a label and prepares the inputs again. As z
is linear in the one-hot labels, the difference is the derivative of z along the change. Autograd
then differentiates the predictions with respect to the inputs. The product, summed over the nodes
u whose input carries the label,

    d ŷ^l_v / d y_v = Σ_u <∂ŷ^l_v/∂input_u, Δinput_u>,

measures how strongly a label returns, and through which nodes. The check also runs the model on the
changed inputs, which shows how much the prediction moves even if an input has no gradient (the
oracle's labels, sparse features).

Own labels need one pass per node, since the labels of other training nodes may legitimately matter.
The check follows a sample of the training nodes. No probe of all nodes at once is exact: random
directions mix in the legitimate dependence on other nodes, and in small-world graphs few nodes are
far enough apart not to interfere beyond a few layers. Validation and test labels must not matter
at all, so the check changes all of them at once; this part is exhaustive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.analysis.tracing import InputsOf, LeakPath, Relabel, Tracer
from deepgat.errors import UserError
from deepgat.models import Network

HIDDEN_PARTS = {"val": "validation", "test": "test"}


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
    paths: list[LeakPath]
    """One per node whose own label reaches its prediction, and one per hidden part that leaks."""

    @property
    def clean(self) -> bool:
        """Whether no label leaks."""
        return not self.own_change.any() and not any(
            change.any() for change in self.hidden_change.values()
        )

    def own_label_reaches(self, layer: int) -> int:
        """The number of checked nodes whose own label reaches ŷ^layer."""
        return int((self.own_change[:, self.layers.index(layer)] > 0).sum())

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        parts = [self._own_verdict()]
        for part, change in self.hidden_change.items():
            name = HIDDEN_PARTS[part]
            blamed = [path for path in self.paths if path.label == part]
            if not change.any():
                parts.append(f"no prediction depends on a {name} label")
            elif not blamed:
                parts.append(f"predictions depend on several {name} labels together")
            else:
                parts.append(
                    f"{name} labels leak: that of node {blamed[0].node} reaches the prediction of "
                    f"node {blamed[0].reaches} at layer {blamed[0].layer} through its "
                    f"{blamed[0].through}"
                )
        sentence = "; ".join(parts) + "."
        return sentence[0].upper() + sentence[1:]

    def _own_verdict(self) -> str:
        tried = f"{len(self.nodes)} of {self.training_nodes} training nodes tried"
        own = [path for path in self.paths if path.label == "own"]
        if not own:
            return f"no prediction depends on its node's own label ({tried})"
        joined = [path.hops for path in own if path.hops is not None]
        ways = f", over {min(joined)} hops" if joined else ""
        return (
            f"own labels leak: from layer {min(path.layer for path in own)} on, {len(own)} "
            f"predictions ({tried}) depend on their node's own label{ways}, and change by up to "
            f"{self.own_change.max().item():.3g}"
        )


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
    a few for validation and test labels.

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
        ...     return ModelInputs(graph.x, neighbors, graph.label_features)
        >>> print(check_leakage(model, inputs_of, graph.y, masks).verdict)     # doctest: +SKIP
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
    change = Relabel(y, num_classes, generator)
    tracer = Tracer(model, inputs_of, y)

    paths: list[LeakPath] = []
    own_change = torch.zeros(len(nodes), len(tracer.layers), dtype=torch.float64)
    for row, v in enumerate(nodes.tolist()):
        other = tracer.respond(change(torch.tensor([v])))
        if other is not None:
            own_change[row] = tracer.change_at(other, v)
            if own_change[row].any():
                paths.append(tracer.path("own", v, v, other))
    hidden_change = {}
    for part in HIDDEN_PARTS:
        if part in masks:
            largest, path = _follow_part(tracer, change, part, masks[part].cpu())
            hidden_change[part] = largest
            paths += [path] if path is not None else []
    return LeakageReport(nodes, len(train), tracer.layers, own_change, hidden_change, paths)


def _follow_part(
    tracer: Tracer, change: Relabel, part: str, mask: Tensor
) -> tuple[Tensor, LeakPath | None]:
    """(the largest change per layer, one path), from changing all labels of the part at once.

    It tries two changes, since a single one may preserve a sum of labels. Bisection finds the
    label responsible.
    """
    group = mask.nonzero().view(-1)
    largest = torch.zeros(len(tracer.layers), dtype=torch.float64)
    for partly in (False, True):
        responses = tracer.respond(change(group, partly))
        if responses is not None:
            largest = torch.maximum(largest, tracer.largest_change(responses))
    if not largest.any():
        return largest, None
    while len(group) > 1:
        half = group[: len(group) // 2]
        found = tracer.respond(change(half))
        reaches = found is not None and bool(tracer.largest_change(found).any())
        group = half if reaches else group[len(group) // 2 :]
    last = tracer.respond(change(group))
    if last is None or not tracer.largest_change(last).any():
        return largest, None  # only several labels together have an effect
    node = int(group[0])
    return largest, tracer.path(part, node, tracer.most_moved(last), last)
