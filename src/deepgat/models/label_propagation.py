"""Label propagation: the training labels, spread over the graph. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from deepgat.data.label_features import neighborhoods, one_hot_labels, power_without_diagonal
from deepgat.errors import UserError
from deepgat.models.config import Config, layers


@dataclass(frozen=True)
class LabelPropagationConfig(Config):
    """Settings of :class:`LabelPropagation`."""

    num_layers: int = layers(2, "k, number of hops")


class LabelPropagation:
    r"""Label propagation, a node's own label left out.

    .. math:: \hat Y = \mathrm{rm\_diag}(\hat A^k) \, Y, \qquad \hat A_{vu} = 1/|N_v|

    Y [n, C] has the one-hot labels of the training nodes and zero rows elsewhere. A node that no
    label reaches gets the class frequencies of the training nodes (of the *other* ones, if it is
    a training node itself, so that no score depends on the node's own label; of all classes alike
    if there is no other).
    Zhu and Ghahramani, *Learning from Labeled and Unlabeled Data with Label Propagation*, 2002.

    Args:
        num_layers: k.
        out_channels: C.

    Shapes: edge_index [2, ·], y [n], train_mask [n] → scores [n, C] float64.
    """

    Config: ClassVar[type[Config]] = LabelPropagationConfig

    def __init__(self, num_layers: int, out_channels: int) -> None:
        self.config = LabelPropagationConfig(num_layers)
        self.out_channels = out_channels

    def __call__(self, edge_index: Tensor, y: Tensor, train_mask: Tensor) -> Tensor:
        Y = one_hot_labels(y, train_mask, self.out_channels)
        if not bool(Y.any()):
            raise UserError("label propagation needs at least one labelled training node")
        near = neighborhoods(edge_index, len(y))
        hops = self.config.num_layers
        scores = torch.from_numpy(power_without_diagonal(near, Y.cpu().numpy(), hops)).to(y.device)
        others = Y.sum(dim=0) - Y
        total = others.sum(dim=1, keepdim=True)
        frequencies = torch.where(total == 0, 1 / self.out_channels, others / total.clamp(min=1))
        return torch.where(scores.any(dim=1, keepdim=True), scores, frequencies)
