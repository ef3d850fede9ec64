"""The forms a score s_vu between two neighbours can take.

Most forms hold small per-node tensors, from which an operator computes each s_vu on the fly. Only
:class:`EdgeScore` holds one number per edge.
Shapes: n nodes, E edges, H heads, A numbers per vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from torch import Tensor

from deepgat.errors import unknown_name


@dataclass(frozen=True, eq=False)
class DotProduct:
    """s_vu = scale · <query_v, key_u>; query and key: [n, H, A]."""

    query: Tensor
    key: Tensor
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class ClassAgreement:
    """s_vu = scale · <ŷ_v, ŷ_u>, ŷ = softmax(logits), or sigmoid(logits) for independent labels.

    logits: [n, H, C]. It is separate from :class:`DotProduct` so that an operator can fuse ŷ.
    """

    logits: Tensor
    scale: float = 1.0
    independent_labels: bool = False


@dataclass(frozen=True, eq=False)
class Additive:
    """s_vu = LeakyReLU(target_v + source_u); target and source: [n, H]."""

    target: Tensor
    source: Tensor
    negative_slope: float = 0.2


@dataclass(frozen=True, eq=False)
class EdgeScore:
    """s_vu given explicitly, [E, H], or [E, 1] for all heads; −inf removes an edge."""

    score: Tensor


@dataclass(frozen=True)
class Uniform:
    """s_vu = 0: all neighbours have the same weight."""


ScoreForm: TypeAlias = DotProduct | ClassAgreement | Additive | EdgeScore | Uniform


class Normalization(Enum):
    """How e_vu = exp(s_vu) becomes a weight; d_v = Σ_{u∈N_v} e_vu."""

    ROW = "row"
    """α_vu = e_vu / d_v, the softmax over N_v."""
    SYMMETRIC = "symmetric"
    """α_vu = e_vu / sqrt(d_v d_u); with equal scores, GCN's 1/sqrt(|N_v| |N_u|)."""

    @staticmethod
    def named(name: Normalization | str) -> Normalization:
        """The normalisation of this name."""
        if isinstance(name, Normalization):
            return name
        names = [each.value for each in Normalization]
        if name not in names:
            raise unknown_name("normalization", str(name), names)
        return Normalization(name)
