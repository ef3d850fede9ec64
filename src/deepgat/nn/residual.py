"""GCNII's residual connections."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from deepgat import ops


class IdentityMap(nn.Module):
    """x ((1 − β) I + β W): GCNII's identity mapping. ``weight``: W [D, D]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.weight.size(0))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, beta: float) -> Tensor:
        return ops.identity_map(x, self.weight, beta)
