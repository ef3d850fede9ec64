"""Exponential moving average of the weights, which is what is validated and kept.

After step t, w̄ ← d_t w̄ + (1 − d_t) w with d_t = min(d, (1 + t) / (10 + t)), so that the first
steps are soon forgotten. Training continues with w; evaluation uses w̄.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AveragedWeights:
    """w̄ for every parameter of a model."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = [parameter.detach() for parameter in model.parameters()]
        self.average = [weight.clone() for weight in self.weights]
        self._aside = [weight.clone() for weight in self.weights]
        self.step = self.weights[0].new_zeros(())

    @torch.no_grad()
    def learn(self) -> None:
        """Update the average after a step; in place, so that a CUDA graph can record it."""
        self.step += 1
        share = 1 - ((1 + self.step) / (10 + self.step)).clamp(max=self.decay)
        change = torch._foreach_sub(self.weights, self.average)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(self.average, change)

    def reset(self) -> None:
        """Restart the average from the current weights."""
        torch._foreach_copy_(self.average, self.weights)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model's weights are the averaged ones."""
        torch._foreach_copy_(self._aside, self.weights)
        torch._foreach_copy_(self.weights, self.average)
        try:
            yield
        finally:
            torch._foreach_copy_(self.weights, self._aside)

    def tensors(self) -> dict[str, Tensor]:
        """The state, to save and to restore in place."""
        return {"step": self.step} | {str(k): mean for k, mean in enumerate(self.average)}
