"""Deep with given classes in the attention: what better class predictions would give."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from deepgat import ops
from deepgat.errors import UserError
from deepgat.models.config import setting
from deepgat.models.deep import Deep, DeepConfig
from deepgat.models.outputs import Context
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.scores import OracleScore, ScoreFactory
from deepgat.ops import Features
from deepgat.ops.dropout_masks import GOLDEN, mix, threshold


@dataclass(frozen=True)
class DeepOracleConfig(DeepConfig):
    """Settings of :class:`DeepOracle`: those of ``deep``, and p."""

    right: float = setting(
        1.0, "p, share of nodes whose class in the attention is the true one", least=0, most=1
    )


class DeepOracle(Deep):
    r"""Deep whose attention compares given classes c in place of its own predictions q.

    .. math::
        e_{vu} = \exp(\tau \, [c_v = c_u]), \qquad
        c_v = \begin{cases} y_v & \text{with probability } p \\
            \text{another class, drawn uniformly} & \text{else} \end{cases}

    This is :class:`Deep` with q = one-hot(c) in every layer that attends. An experiment to compare
    with, not a model: it looks at every label, test nodes included. Its layers still predict
    classes, and are trained to; only the attention ignores them. c_v is a hash of v's number and
    of a seed that is drawn with the weights, so it is the same in every layer, epoch and
    evaluation of a run, and differs from seed to seed.

    Args: as in :class:`Deep`; settings are :class:`DeepOracleConfig`'s.

    Shapes: as in :class:`Deep`; pass ``labels`` [n] to :meth:`forward`.
    """

    Config = DeepOracleConfig
    config: DeepOracleConfig
    needs_labels = True
    seed: Tensor

    def make_modules(self) -> None:
        super().make_modules()
        if self.reads_node_numbers and (self.multi_label or self.out_channels < 2):
            raise UserError(
                f"right is {self.config.right}, but wrong classes need one class per node and at "
                "least two to choose from: set right=1"
            )
        self.register_buffer("seed", torch.randint(2**31 - 1, (1,)))  # after all weights

    @property
    def reads_node_numbers(self) -> bool:
        return self.config.right < 1

    def score(self, number: int) -> ScoreFactory:
        if not self.config.attends(number):
            return super().score(number)
        return partial(OracleScore, sharpness=self.config.sharpness)

    def layer(self, number: int, h: Features, context: Context) -> ConvOutput:
        shown = None if context.labels is None else self.shown(context.labels)
        return super().layer(number, h, replace(context, labels=shown))

    def shown(self, labels: Tensor) -> Tensor:
        """c [n] from y [n]; a node without a label (y < 0) stays without."""
        if not self.reads_node_numbers:
            return labels
        part = ops.current_part()
        ids = torch.arange(labels.size(0), device=labels.device)
        ids = ids if part is None else part.ids[: part.own].to(labels.device)
        draw = mix(mix(self.seed ^ ids) + GOLDEN)
        wrong = (draw < threshold(1 - self.config.right)) & (labels >= 0)
        others = self.out_channels - 1
        other = (labels + 1 + mix(draw + GOLDEN) % others) % self.out_channels
        return torch.where(wrong, other, labels)
