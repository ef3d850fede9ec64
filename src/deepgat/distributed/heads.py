"""Heads divided among processes: the exchange, and whose gradients are a share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deepgat.distributed.team import Team
from deepgat.errors import UserError
from deepgat.nn import AttentionStack, NeighborAttention
from deepgat.ops import HeadShare


class LiveHeads(HeadShare):
    """Heads r·H/N … (r + 1)·H/N − 1 of every layer are process r's, of N.

    A layer whose heads do not divide, such as a last one with a single output head, is everyone's.
    """

    def __init__(self, team: Team, model: nn.Module) -> None:
        self.team, self.rank, self.size = team, team.rank, team.size
        heads = model.heads if isinstance(model, AttentionStack) else 1
        if heads % team.size:
            raise UserError(
                f"{heads} head{'s' if heads > 1 else ''} cannot be shared equally by {team.size} "
                "processes: choose a number of processes that divides the model's heads, or "
                "--parallel parts"
            )
        self.parameters = [
            parameter
            for module in model.modules()
            if isinstance(module, NeighborAttention) and self.divides(module.heads)
            for name, parameter in module.named_parameters()
            if name != "bias"  # it is added to the output of all heads
        ]

    def entered(self, x: Tensor) -> Tensor:
        return _Enter.apply(x, self.team) if self.size > 1 else x

    def gathered(self, x: Tensor) -> Tensor:
        return _Gather.apply(x, self.team) if self.size > 1 else x

    def sum_gradients(self) -> None:
        """Every process has the gradients of its own heads' weights, and 0 for the others'."""
        self.team.sum_gradients(self.parameters)

    def agreed(self, numbers: tuple[float, float, float]) -> tuple[float, float, float]:
        """The first process's numbers, so that all decide alike."""
        one, two, three = self.team.from_first(torch.tensor(numbers, dtype=torch.float64)).tolist()
        return one, two, three


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team) -> Tensor:
        ctx.team = team
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.team.sum(grad), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team) -> Tensor:
        ctx.rank, ctx.heads = team.rank, x.size(1)
        everyone = team.everyone(x.reshape(-1))
        team.sent += x.numel() * x.element_size() * (team.size - 1)
        each = everyone.view(team.size, *x.shape).transpose(0, 1)  # [k, processes, heads, …]
        return each.flatten(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.narrow(1, ctx.rank * ctx.heads, ctx.heads).contiguous(), None
