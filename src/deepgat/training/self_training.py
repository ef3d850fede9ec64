"""Self-training: a second stage that also learns from predictions of nodes without a label.

It begins once patience has run out, from the best epoch's weights. The targets t are that epoch's
predictions, their logits divided by the temperature at which the loss on the validation nodes is
smallest; after every further epoch, without dropout, t ← (1 − η) t + η softmax(logits / T) with
η = 0.2. Over the set U of nodes outside the training set the loss gains

    μ r · (1/|U|) Σ_{v ∈ U} CE(ŷ^L_v, t_v),

where r grows from 0 to 1 over 50 epochs. The stage keeps the best of its own epochs, from the 50th
on: the monitored number is not the same once the targets count. Of the validation labels only the
temperature is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.distributed import Team
from deepgat.errors import UserError
from deepgat.models import Network
from deepgat.training.inputs import GraphInputs, Inputs, Trained
from deepgat.training.settings import TrainSettings

EPOCHS_TO_GROW = 50
UPDATE = 0.2
"""η."""


class SelfTraining:
    """The targets of one graph, or of this process's part of it."""

    def __init__(
        self, graph: GraphInputs, model: Network, settings: TrainSettings, team: Team | None
    ) -> None:
        self.graph, self.team = graph, team
        self.weight = settings.self_training
        self.began: int | None = None
        """The last epoch before the second stage."""
        like, n = next(model.parameters()), graph.y.size(0)
        self.targets = like.new_full((n, model.out_channels), 1.0 / model.out_channels)
        self.unlabelled = like.new_ones(n)
        self.unlabelled[graph.nodes["train"]] = 0.0
        self.epoch = like.new_zeros(())
        self.first = like.new_tensor(math.inf)

    @staticmethod
    def wanted(
        model: Trained, inputs: Inputs, settings: TrainSettings, team: Team | None
    ) -> SelfTraining | None:
        """The second stage, where the settings ask for one; data that does not suit is refused."""
        if not settings.self_training:
            return None
        graph = inputs.validation[0]
        alone = len(inputs.repeated) == 1 and inputs.repeated[0] is graph
        if not isinstance(model, Network) or not alone or graph.y.dim() > 1:
            raise UserError(
                "self_training takes one graph with one class per node, seen whole in every step: "
                "set self_training=0"
            )
        return SelfTraining(graph, model, settings, team)

    def loss(
        self, layer_logits: Mapping[int, Tensor], class_weight: Tensor | None = None
    ) -> Tensor:
        """From every layer's logits {l: [n, C]}; in a team this process's share of it.

        With weights w_c of the classes, Σ_v Σ_c w_c t_vc (−log ŷ^L_vc) / Σ_v Σ_c w_c t_vc over U.
        """
        last = layer_logits[max(layer_logits)]
        target = self.targets.clamp(min=1e-12).log().softmax(-1)
        chosen, least = self.unlabelled.to(last.dtype), 1.0
        counted = chosen
        if class_weight is not None:
            target = target * class_weight.to(target.dtype)
            counted, least = chosen * target.sum(-1).to(last.dtype), 1e-12
        count = counted.sum()
        if self.team is not None:
            count = self.team.sum(count)
        each = F.cross_entropy(last, target, reduction="none")
        grown = ((self.epoch - self.first) / EPOCHS_TO_GROW).clamp(0, 1)
        return self.weight * grown * (each * chosen).sum() / count.clamp(min=least)

    @torch.no_grad()
    def learn(self, logits: Tensor, temperature: Tensor) -> None:
        """After an epoch; in place, so that a CUDA graph can record it. ``temperature``: [1]."""
        self.targets.lerp_(_probabilities(logits, temperature).to(self.targets.dtype), UPDATE)
        self.epoch += 1

    @torch.no_grad()
    def begin(self, epoch: int, logits: Tensor, temperature: Tensor) -> None:
        """Begin the second stage: the best model's predictions are the first targets."""
        self.began = epoch
        self.first.fill_(epoch)
        self.targets.copy_(_probabilities(logits, temperature))

    @property
    def first_compared(self) -> int:
        """The first epoch that may be the best: of the second stage, once targets count fully."""
        return 1 if self.began is None else self.began + EPOCHS_TO_GROW

    def targets_of_all(self) -> Tensor | None:
        """[n, C], to save; every process of a team calls it, and the first one gets them."""
        return self.graph.gathered(self.targets)

    def restore_targets(self, rows: Tensor) -> None:
        """Take up the saved targets, once ``first`` has its saved value."""
        part = self.graph.part
        self.targets.copy_(rows if part is None else rows[part.ids[: part.own].cpu()])
        if not math.isinf(self.first.item()):
            self.began = int(self.first.item())


def _probabilities(logits: Tensor, temperature: Tensor) -> Tensor:
    return (logits / temperature.to(logits.dtype)).softmax(-1)
