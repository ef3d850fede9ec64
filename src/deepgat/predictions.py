"""Predictions for the nodes of a graph, and the explanation of one node layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.analysis.early_exit import ExitPolicy
from deepgat.errors import UserError


@dataclass(frozen=True, eq=False)
class Predictions:
    """A model's predictions for the nodes of one graph: n nodes, C classes."""

    labels: Tensor
    """[n] classes, −1 where the model abstains; or [n, C] bool of independent labels."""
    probabilities: Tensor
    """[n, C], calibrated on validation nodes."""
    layers: Tensor | None = None
    """[n]: the layer whose prediction was taken, where prediction may stop early."""
    computed: int | None = None
    """How many layers were computed for that; all where some node was never sure."""
    sets: Tensor | None = None
    """[n, C] bool: the classes in each node's prediction set, where a coverage was asked for."""

    @property
    def confidence(self) -> Tensor:
        """[n]: the probability of the class; with independent labels that of the least sure one."""
        if self.labels.dim() == 1:
            return self.probabilities.max(1).values
        sure = torch.where(self.labels, self.probabilities, 1 - self.probabilities)
        return sure.min(1).values


@dataclass(frozen=True)
class PredictOptions:
    """How classes are chosen and what is told with them: arguments of :meth:`Model.predict`."""

    early_exit: ExitPolicy | None = None
    coverage: float | None = None
    class_conditional: bool = False
    abstain: float | None = None

    def __post_init__(self) -> None:
        if self.class_conditional and self.coverage is None:
            raise UserError("class_conditional is a kind of coverage: give coverage too")
        if self.coverage is not None and self.early_exit is not None:
            raise UserError("coverage is of the last layer's predictions: leave early_exit out")


@dataclass(frozen=True, eq=False)
class Explanation:
    """One node: what every layer predicts for it, and whom it listens to in every layer."""

    node: int
    neighbors: Tensor
    """[k] nodes u ∈ N_v, the node itself first."""
    layers: dict[int, Tensor]
    """{l: [k, C]}: the probabilities after layer l, of the node (row 0) and its neighbours, all
    with the model's one temperature."""
    attention: Tensor
    """[L, k]: α_vu of every layer, heads averaged; layer l compares the predictions of l − 1."""
    label: int | None
    """The node's own class where it is known."""

    @property
    def classes(self) -> dict[int, int]:
        """{l: the class that layer l predicts for the node}."""
        return {layer: int(shares[0].argmax()) for layer, shares in self.layers.items()}
