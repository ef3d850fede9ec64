"""Early exit: a node takes the prediction of the first layer that is confident enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.analysis.calibration import fit_temperature
from deepgat.errors import UserError


@dataclass(frozen=True)
class ExitPolicy:
    """Temperatures {l: T_l}, and the confidence at which a prediction is final.

    A node stops at the first layer l with max_c softmax(logits^l_v / T_l)_c ≥ threshold, or at L.
    """

    temperatures: Mapping[int, float]
    threshold: float

    def apply(self, layer_logits: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
        """{l: [n, C]} → (probabilities [n, C], the layer at which each node stopped [n])."""
        layers = sorted(self.temperatures)
        given = sorted(layer_logits)
        until = self.until()  # deeper layers may be missing if no node needs them
        enough = given == layers or (
            given == layers[: len(given)] and any(until(each, layer_logits[each]) for each in given)
        )
        if not enough:
            raise UserError(
                f"the network predicts at layers {given}, but the exits were chosen "
                f"for {layers}: choose them for this network"
            )
        return _stopped(_shares(layer_logits, self.temperatures), self.threshold)

    def until(self) -> Callable[[int, Tensor], bool]:
        """A function (l, logits [n, C]) → whether all nodes have stopped, for l = 0, 1, … in turn.

        Later layers change no prediction, so they need not be computed.
        """
        sure: list[Tensor] = []

        def seen(layer: int, logits: Tensor) -> bool:
            shares = _shares({layer: logits.float().cpu()}, self.temperatures)[layer]
            now = shares.max(1).values >= self.threshold
            sure[:] = [now | sure[0] if sure else now]
            return bool(sure[0].all())

        return seen


def choose_exits(
    layer_logits: Mapping[int, Tensor], y: Tensor, tolerance: float = 0.0
) -> ExitPolicy:
    """Choose a policy on validation nodes, from {l: [n, C]} and y [n].

    It fits one temperature per layer. It then takes the lowest threshold that loses at most
    ``tolerance`` of the accuracy of the last layer.
    """
    if len(layer_logits) < 2:
        raise UserError(
            "only the last layer predicts here: early exit needs a model whose every layer does, "
            "such as deepgat, trained on the whole graph (batches=none)"
        )
    if not 0 <= tolerance < 1:
        raise UserError(f"tolerance is {tolerance}: expected a share from 0 to below 1")
    temperatures = {layer: fit_temperature(layer_logits[layer], y) for layer in layer_logits}
    shares = _shares(layer_logits, temperatures)
    last = shares[max(shares)]
    wanted = int((last.argmax(1) == y).sum()) - tolerance * len(y) - 1e-9
    seen = torch.cat([each.max(1).values for each in shares.values()]).unique()
    chosen = 1.0
    for threshold in _spread(seen).flip(0).tolist():  # in descending order
        answer, _ = _stopped(shares, threshold)
        if int((answer.argmax(1) == y).sum()) < wanted:
            break
        chosen = threshold
    return ExitPolicy(temperatures, chosen)


def _shares(
    layer_logits: Mapping[int, Tensor], temperatures: Mapping[int, float]
) -> dict[int, Tensor]:
    return {
        layer: (layer_logits[layer].double() / temperatures[layer]).softmax(1)
        for layer in sorted(layer_logits)
    }


def _stopped(shares: Mapping[int, Tensor], threshold: float) -> tuple[Tensor, Tensor]:
    last = max(shares)
    answer, stop = shares[last].clone(), torch.full((len(shares[last]),), last)
    for layer in sorted(shares, reverse=True):
        sure = shares[layer].max(1).values >= threshold
        answer[sure], stop[sure] = shares[layer][sure], layer
    return answer, stop


def _spread(values: Tensor, most: int = 200) -> Tensor:
    """At most ``most`` of the ascending values, including the largest."""
    if len(values) <= most:
        return values
    return values[torch.linspace(0, len(values) - 1, most).long()]
