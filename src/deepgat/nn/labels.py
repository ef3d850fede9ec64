"""Which weights see the propagated labels z: one small class per wiring."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from deepgat.ops import Columns, Features, SparseMatrix


class LabelInput(Protocol):
    """Where z [n, C] enters a layer whose input is h [n, heads·D]."""

    def layer_channels(self, heads: int, num_classes: int) -> int:
        """Columns that z adds to the layer's input."""
        ...

    def prediction_channels(self, num_classes: int) -> int:
        """Columns that z adds to the input of the class head W₁ alone."""
        ...

    def join(self, h: Features, z: Tensor, heads: int) -> tuple[Features, Tensor | None]:
        """(the layer's input, what the class head sees besides)."""
        ...


class LabelsToPrediction:
    """The paper: W₁ alone sees z, so labels steer the attention but are never aggregated."""

    def layer_channels(self, heads: int, num_classes: int) -> int:
        return 0

    def prediction_channels(self, num_classes: int) -> int:
        return num_classes

    def join(self, h: Features, z: Tensor, heads: int) -> tuple[Features, Tensor | None]:
        return h, z


class LabelsToLayer:
    """The authors' code: z is appended to every head of the layer's input; W₁ and W₂ see it.

    h_v = (h_v1 ‖ … ‖ h_vH) becomes (h_v1 ‖ z_v ‖ … ‖ h_vH ‖ z_v), before dropout. Since W₂
    aggregates it, a training node's own label returns to it through its neighbours' z, two hops
    away, although z_v itself leaves it out.
    """

    def layer_channels(self, heads: int, num_classes: int) -> int:
        return heads * num_classes

    def prediction_channels(self, num_classes: int) -> int:
        return 0

    def join(self, h: Features, z: Tensor, heads: int) -> tuple[Features, Tensor | None]:
        if isinstance(h, SparseMatrix):  # the features themselves, which have no heads
            return Columns((h, z)), None
        assert isinstance(h, Tensor)
        per_head = h.unflatten(1, (heads, -1))
        repeated = z.unsqueeze(1).expand(-1, heads, -1)
        return torch.cat([per_head, repeated], -1).flatten(1), None
