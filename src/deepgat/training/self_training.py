"""Self-training: confident predictions of nodes without a label become further targets.

After every epoch, without dropout, the average prediction t ← (1 − η) t + η softmax(logits) is
taken; where self-training begins once patience has run out, t is then the best epoch's prediction.
Let U be the nodes outside the training set with max_c t_vc above the confidence. The loss gains

    μ r · (1/|U|) Σ_{v ∈ U} [CE(ŷ^L_v, s_v) + (κ / (L − 1)) Σ_{l<L} CE(ŷ^l_v, s_v)],

where r grows from 0 to 1 over 50 epochs and the target s_v is the class argmax_c t_vc or, with a
target temperature T, t_v^(1/T) / Σ_c t_vc^(1/T). No label is looked at but those the model is
trained with; calibrated, the logits are first divided by the temperature at which the loss on the
validation nodes is smallest: of their labels, that one number is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.distributed import Team
from deepgat.errors import UserError
from deepgat.nn import AttentionStack
from deepgat.training.inputs import GraphInputs, Inputs, Network
from deepgat.training.settings import TrainSettings

EPOCHS_TO_GROW = 50


class Teacher:
    """The targets of one graph, or of this process's part of it."""

    def __init__(
        self, graph: GraphInputs, model: AttentionStack, settings: TrainSettings, team: Team | None
    ) -> None:
        self.graph, self.team = graph, team
        self.weight, self.confidence = settings.self_training, settings.confidence
        self.temperature, self.update = settings.target_temperature, settings.target_update
        self.of_layers = settings.taught_layers
        self.waits = not settings.self_training_from
        """Whether it begins a second stage, once patience has run out."""
        self.own_best = settings.own_best
        self.began: int | None = None
        """The last epoch before that stage."""
        like, n = next(model.parameters()), graph.y.size(0)
        self.average = like.new_full((n, model.num_classes), 1.0 / model.num_classes)
        self.unlabelled = like.new_ones(n)
        self.unlabelled[graph.nodes["train"]] = 0.0
        self.epoch = like.new_zeros(())
        self.first = like.new_tensor(math.inf if self.waits else settings.self_training_from)

    @staticmethod
    def wanted(
        model: Network, inputs: Inputs, settings: TrainSettings, team: Team | None
    ) -> Teacher | None:
        """A teacher, where the settings ask for one and the data suits it."""
        if not settings.self_training:
            return None
        graph = inputs.validation[0]
        alone = len(inputs.repeated) == 1 and inputs.repeated[0] is graph
        if not isinstance(model, AttentionStack) or not alone or graph.y.dim() > 1:
            raise UserError(
                "self_training takes one graph with one class per node, seen whole in every step: "
                "set self_training=0"
            )
        return Teacher(graph, model, settings, team)

    def loss(self, layer_logits: Mapping[int, Tensor]) -> Tensor:
        """From every layer's logits {l: [n, C]}; in a team this process's share of it."""
        *before, last = (layer_logits[layer] for layer in sorted(layer_logits))
        probability, target = self.average.max(1)
        if self.temperature:
            target = (self.average.clamp(min=1e-12).log() / self.temperature).softmax(-1)
        chosen = (probability > self.confidence).to(last.dtype) * self.unlabelled
        count = chosen.sum()
        if self.team is not None:
            count = self.team.sum(count)
        each = F.cross_entropy(last, target, reduction="none")
        if self.of_layers and before:
            terms = [F.cross_entropy(logits, target, reduction="none") for logits in before]
            each = each + self.of_layers * torch.stack(terms).mean(0)
        grown = ((self.epoch - self.first) / EPOCHS_TO_GROW).clamp(0, 1)
        return self.weight * grown * (each * chosen).sum() / count.clamp(min=1)

    @torch.no_grad()
    def learn(self, logits: Tensor, temperature: Tensor | None = None) -> None:
        """What the model says of all nodes after an epoch; in place, so that it can be recorded.

        ``temperature`` [1]: its best on the validation nodes, where targets are calibrated.
        """
        self.average.lerp_(_probabilities(logits, temperature).to(self.average.dtype), self.update)
        self.epoch += 1

    @torch.no_grad()
    def begin(self, epoch: int, logits: Tensor, temperature: Tensor | None = None) -> None:
        """From here on: what the best model says are the first targets."""
        self.began = epoch
        self.first.fill_(epoch)
        self.average.copy_(_probabilities(logits, temperature))

    @property
    def first_compared(self) -> int:
        """The first epoch that may be the best: of a second stage that keeps its own, the one in
        which the targets have grown; until then the first stage's best stays."""
        if not self.own_best or self.began is None:
            return 1
        return self.began + EPOCHS_TO_GROW

    def state(self) -> dict[str, Tensor] | None:
        """Of all nodes, for whoever keeps it; all processes of a team call it, the first has it."""
        part = self.graph.part
        average = self.average if part is None else part.gathered(self.average)
        if average is None:
            return None
        return {"average": average, "epoch": self.epoch, "first": self.first}

    def restore(self, state: dict[str, Tensor]) -> None:
        part = self.graph.part
        rows = state["average"]
        if part is not None:
            rows = rows[part.ids[: part.own].cpu()]
        self.average.copy_(rows)
        self.epoch.copy_(state["epoch"])
        self.first.copy_(state["first"])
        if self.waits and not math.isinf(self.first.item()):
            self.began = int(self.first.item())


def _probabilities(logits: Tensor, temperature: Tensor | None) -> Tensor:
    if temperature is not None:
        logits = logits / temperature.to(logits.dtype)
    return logits.softmax(-1)
