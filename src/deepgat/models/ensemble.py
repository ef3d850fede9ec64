"""Ensemble: several trained networks that predict as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from deepgat.errors import UserError
from deepgat.models.config import MOST_LAYERS, Config, layers, setting
from deepgat.models.network import Network
from deepgat.models.outputs import LayerOutputs, Until
from deepgat.ops import Features, Neighbors

MOST_MEMBERS = 50
LEAST, MOST = 1e-6, 1e6
"""Of a member's weight and temperature; beyond them probabilities would not be finite numbers."""


@dataclass(frozen=True)
class EnsembleConfig(Config):
    """Settings of :class:`Ensemble`."""

    num_layers: int = layers(1, "L, layers of the deepest member")
    hidden_channels: int = setting(1, "width of the widest member", least=1)
    members: list[dict[str, Any]] = setting(  # noqa: RUF009 - made anew for each
        [], "a table for each: system, its settings, weight and temperature", kind=list
    )
    class_factors: list[float] = setting(  # noqa: RUF009 - made anew for each
        [], "f, a factor for the probability of each class; none if empty", kind=list
    )

    def check(self) -> None:
        if not 1 <= len(self.members) <= MOST_MEMBERS:
            raise UserError(
                f"members has {len(self.members)} entries: expected 1 to {MOST_MEMBERS}"
            )
        for member in self.members:
            keys = {"system", "settings", "weight", "temperature"}
            right = isinstance(member, dict) and member.keys() == keys
            right = right and isinstance(member["system"], str)
            right = right and isinstance(member["settings"], dict)
            numbers = [member["weight"], member["temperature"]] if right else [math.nan]
            if not all(type(x) in (int, float) and LEAST <= x <= MOST for x in numbers):
                raise UserError(
                    "a member of the ensemble is not a table of system, settings, weight and "
                    f"temperature, the last two from {LEAST:g} to {MOST:,.0f}"
                )
            if member["system"] == "ensemble":
                raise UserError("a member of an ensemble is one network, not an ensemble")
        if not all(type(x) in (int, float) and LEAST <= x <= MOST for x in self.class_factors):
            raise UserError(f"class_factors are not numbers from {LEAST:g} to {MOST:,.0f}")
        depths = [member["settings"].get("num_layers", 1) for member in self.members]
        if all(type(depth) is int for depth in depths) and sum(depths) > MOST_LAYERS:
            raise UserError(
                f"the members have {sum(depths):,} layers: expected {MOST_LAYERS:,} or fewer"
            )


class Ensemble(Network):
    r"""Ensemble: the weighted mean of what its members predict.

    .. math::
        p_{vc} \propto f_c \sum_m w_m \, \mathrm{softmax}(\hat y^{(m)}_v / T_m)_c, \qquad
        \sum_m w_m = 1

    (sigmoid for independent labels, without f). The logits are log p, or log p/(1 − p). T_m makes
    the members' probabilities comparable, and f makes classes as frequent as they are where labels
    are few (:mod:`deepgat.training.class_shares`). Hidden states, attention and the predictions of
    layers before the last are those of the member with the largest weight.
    Caruana et al., *Ensemble Selection from Libraries of Models*, ICML 2004.

    Args: as in :class:`~deepgat.models.network.Network`, and ``build``, which makes a member from
    its system's name and settings; settings are :class:`EnsembleConfig`'s.

    Shapes: x [n, in_channels], edge_index [2, ·] → logits [n, out_channels].
    """

    Config = EnsembleConfig
    config: EnsembleConfig

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        *,
        build: Callable[[str, dict[str, Any]], Network],
        **settings: Any,
    ) -> None:
        super().__init__(in_channels, hidden_channels, num_layers, out_channels, **settings)
        described = self.config.members
        self.members = nn.ModuleList(build(m["system"], m["settings"]) for m in described)
        configs = [cast(Network, member).config.to_dict() for member in self.members]
        for name, value in (("num_layers", num_layers), ("hidden_channels", hidden_channels)):
            if (found := max(config[name] for config in configs)) != value:
                raise UserError(f"{name} is {value}: the largest of the members is {found}")
        expected = 0 if self.multi_label else out_channels
        if len(self.config.class_factors) not in (0, expected):
            raise UserError(
                f"class_factors has {len(self.config.class_factors)} entries: expected none"
                + (f", or one for each of {expected} classes" if expected else "")
            )
        total = sum(member["weight"] for member in described)
        self.shares = [member["weight"] / total for member in described]
        self.temperatures = [float(member["temperature"]) for member in described]

    @property
    def heaviest(self) -> int:
        """The place of the member with the largest weight."""
        return max(range(len(self.shares)), key=self.shares.__getitem__)

    @property
    def fixed_attention(self) -> bool:
        return cast(Network, self.members[self.heaviest]).fixed_attention

    def run(
        self,
        x: Features,
        edge_index: Tensor | Neighbors,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
        with_attention: bool = False,
        segment: int = 0,
        until: Until | None = None,
    ) -> LayerOutputs:
        if until is not None:
            raise UserError(
                "early exit needs one network whose every layer predicts: those of an ensemble do "
                "not predict what it does"
            )
        found: LayerOutputs | None = None
        parts: list[Tensor] = []
        for place, member in enumerate(self.members):
            shown = place == self.heaviest
            outputs = cast(Network, member).run(
                x, edge_index, label_features, labels, with_attention and shown, segment
            )
            parts.append(outputs.logits)
            if shown:
                found = outputs
        assert found is not None
        logits = self.joined(parts)
        found.logits = logits
        found.layer_logits = {**found.layer_logits, max(found.layer_logits): logits}
        return found

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """The logits of the whole from those of the members, each [n, C]."""
        scaled = [x.double() / t for x, t in zip(parts, self.temperatures, strict=True)]
        shares = torch.tensor(self.shares, dtype=torch.double, device=parts[0].device)
        weight = shares.log().view(-1, 1, 1)
        if self.multi_label:
            yes = torch.stack([nn.functional.logsigmoid(x) for x in scaled])
            no = torch.stack([nn.functional.logsigmoid(-x) for x in scaled])
            out = (weight + yes).logsumexp(0) - (weight + no).logsumexp(0)
        else:
            out = (weight + torch.stack([x.log_softmax(-1) for x in scaled])).logsumexp(0)
            if self.config.class_factors:
                factors = torch.tensor(
                    self.config.class_factors, dtype=out.dtype, device=out.device
                )
                out = (out + factors.log()).log_softmax(-1)
        return out.to(parts[0].dtype)
