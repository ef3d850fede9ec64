"""Normalisation layers, with statistics over all nodes even of a partitioned graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import PairNorm as WholePairNorm

from deepgat import ops
from deepgat.nn.remembered import remembered
from deepgat.ops import current_part, node_mean

NORMS = ("none", "layer", "batch", "pairnorm", "pairnorm-si")


def make_norm(name: str, channels: int, scale: float = 1.0) -> nn.Module:
    """A normalisation layer by name; ``scale`` is PairNorm's s."""
    match name:
        case "layer":
            return nn.LayerNorm(channels)
        case "batch":
            return BatchNorm(channels)
        case "pairnorm":
            return PairNorm(scale)
        case "pairnorm-si":
            return PairNorm(scale, scale_individually=True)
    return nn.Identity()


def norm_elu(norm: nn.Module, x: Tensor) -> Tensor:
    """ELU(norm(x)), fused if the norm is LayerNorm."""
    if isinstance(norm, nn.LayerNorm):
        return ops.layer_norm_elu(x, norm.weight, norm.bias, norm.eps)
    return nn.functional.elu(norm(x))


def normalized(norm: nn.Module, x: Tensor) -> Tensor:
    """norm(x); LayerNorm's gradients are bitwise equal for any number of CPU threads."""
    if isinstance(norm, nn.LayerNorm):
        return ops.layer_norm(x, norm.weight, norm.bias, norm.eps)
    return norm(x)


@torch.no_grad()
def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Variance and mean of every column."""
    variance, mean = torch.var_mean(x, 0, correction=0)
    return variance, mean


class BatchNorm(nn.BatchNorm1d):
    """torch's batch norm with mean and variance over all nodes of the graph.

    With ``from_first`` the running statistics begin with those of the first step instead of 0 and
    1, which features a thousandth as large would take a hundred steps to forget.
    """

    def __init__(self, channels: int, eps: float = 1e-5, *, from_first: bool = False) -> None:
        super().__init__(channels, eps)
        self.from_first = from_first

    def forward(self, x: Tensor) -> Tensor:
        part = current_part()
        if self.training and (x.size(0) if part is None else part.num_nodes) == 1:
            mean, variance = self.running_mean, self.running_var  # one node alone does not differ
            return F.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps)
        if self.from_first and part is None and self.training:
            variance, mean = remembered(self, "statistics", lambda: _statistics(x), x)
            self._remember(mean, variance, x.size(0))
            if x.requires_grad:
                return F.batch_norm(x, None, None, self.weight, self.bias, True, eps=self.eps)
            return F.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps)
        if part is None or not self.training:
            return super().forward(x)
        mean = node_mean(x)
        variance = node_mean((x - mean).square())
        self._remember(mean.detach(), variance.detach(), part.num_nodes)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, nodes: int) -> None:
        """Update the running statistics as torch does, with the unbiased variance."""
        assert self.momentum is not None
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        weight: float | Tensor = self.momentum
        if self.from_first:  # a tensor made on its device, so that a CUDA graph can record it
            first = self.num_batches_tracked == 0
            weight = mean.new_full((), self.momentum).masked_fill(first, 1.0)
        self.num_batches_tracked += 1
        for running, seen in (
            (self.running_mean, mean),
            (self.running_var, variance * (nodes / max(nodes - 1, 1))),
        ):
            running.lerp_(seen, weight)


class PairNorm(WholePairNorm):
    r"""PyG's PairNorm, with sums over all nodes even of a partitioned graph.

    .. math::
        z_v = x_v - \frac{1}{n} \sum_u x_u, \qquad
        y_v = \frac{s z_v}{\epsilon + \|z_v\|} \text{ (individually), or }
        \frac{s z_v}{\sqrt{\epsilon + \frac{1}{n} \sum_u \|z_u\|^2}}
    """

    def forward(self, x: Tensor) -> Tensor:  # without PyG's batch argument
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        z = exact - node_mean(exact)
        if self.scale_individually:
            y = self.scale * z / (self.eps + z.norm(2, -1, keepdim=True))
        else:
            y = self.scale * z / (self.eps + node_mean(z.pow(2).sum(-1))).sqrt()
        widened = self.scale_individually and torch.is_autocast_enabled(x.device.type)
        return y if widened else y.to(x.dtype)  # the type that PyG's formula gives
