"""How much noise dropout leaves in every layer of a network that is being trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from deepgat.errors import UserError


@torch.no_grad()
def noise_by_layer(states: Callable[[], Sequence[Tensor]], draws: int = 50) -> Tensor:
    """‖Var h^l_v‖₁ / ‖E h^l_v‖² of every node and layer, over draws of dropout: [L, n] double.

    1 says that the noise is as large as what it is added to. Both moments are estimates from a
    finite number of draws, and the noise has heavy tails: of few draws it looks smaller than it is.
    NaN where a node's state is zero in every draw.

    Args:
        states: h^1 … h^L [n, ·], drawn anew in every call, such as ``lambda:
            model.train().run(x, edge_index).hidden``.
        draws: calls of it, 2 or more.
    """
    if draws < 2:
        raise UserError(f"draws is {draws}: expected 2 or more")
    mean: list[Tensor] = []
    spread: list[Tensor] = []
    for count in range(1, draws + 1):  # Welford: no difference of large sums
        for layer, state in enumerate(states()):
            state = state.double()
            if count == 1:
                mean.append(state.clone())
                spread.append(torch.zeros_like(state))
                continue
            step = state - mean[layer]
            mean[layer] += step / count
            spread[layer] += step * (state - mean[layer])
    return torch.stack(
        [s.sum(1) / (draws - 1) / m.square().sum(1) for m, s in zip(mean, spread, strict=True)]
    )
