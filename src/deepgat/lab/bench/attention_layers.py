"""DeepGAT's attention layer, in plain PyTorch and by this library."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepgat.nn import ClassScore, NeighborAttention
from deepgat.nn.attention import ConvOutput


class PlainClassAttention(nn.Module):
    """Gather and scatter, which store tensors of size E×H×C and E×H×D.

    ``per_edge_softmax`` computes the class softmax at both ends of every edge instead of once per
    node, as the authors' code does.
    """

    def __init__(
        self,
        width: int,
        channels: int,
        heads: int,
        num_classes: int,
        per_edge_softmax: bool = False,
    ) -> None:
        super().__init__()
        self.shape = (heads, num_classes, channels)
        self.per_edge_softmax = per_edge_softmax
        self.classes = nn.Linear(width, heads * num_classes, bias=False)
        self.values = nn.Linear(width, heads * channels, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(x, edge_index).out

    def run(self, x: Tensor, edge_index: Tensor) -> ConvOutput:
        source, target = edge_index
        heads, num_classes, channels = self.shape
        n = x.size(0)
        logits = self.classes(x).view(n, heads, num_classes)
        value = self.values(x).view(n, heads, channels)
        if self.per_edge_softmax:
            score = (logits[target].softmax(-1) * logits[source].softmax(-1)).sum(-1)
        else:
            y = logits.softmax(-1)
            score = (y[target] * y[source]).sum(-1)
        top = score.new_full((n, heads), -torch.inf)
        index = target.unsqueeze(-1).expand_as(score)
        top = top.scatter_reduce(0, index, score.detach(), "amax")
        weight = (score - top[target]).exp()
        total = weight.new_zeros(n, heads).index_add(0, target, weight)
        weight = weight / total[target]
        messages = weight.unsqueeze(-1) * value[source]
        out = messages.new_zeros(n, heads, channels).index_add(0, target, messages)
        return ConvOutput(out.flatten(1), logits)


def fused_layer(width: int, channels: int, heads: int, num_classes: int) -> NeighborAttention:
    """The same layer with this library's fused kernels."""
    return NeighborAttention(
        width, channels, heads, score=ClassScore, num_classes=num_classes, bias=False
    )
