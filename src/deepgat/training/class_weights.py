"""Weights of classes in the loss, where some have many more nodes than others.

With the weights w_c the loss is Σ_v w_{y_v} CE_v / Σ_v w_{y_v}. "balanced" is w_c = n / (C n_c) for
the n training nodes, n_c of them of class c, and the C classes that have any, as in scikit-learn.

Independent labels each have two weights, of nodes with and without the label. "balanced" makes
them n / (2 n_c) and n / (2 (n − n_c)). A number is the weight of nodes with the label; nodes
without it weigh 1. The loss is then Σ_vc w_vc BCE_vc / Σ_vc w_vc.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deepgat.errors import UserError, unknown_name

BALANCED = "balanced"
EXPECTED = (
    "expected balanced, a number above 0 for every class, as in 1,5, or for some of them by name "
    "or number, as in spam=5"
)


def as_text(value: Any) -> Any:
    """A list of weights, or a table by class, as the text that settings keep."""
    try:
        if isinstance(value, Mapping):
            return json.dumps({str(name): float(weight) for name, weight in value.items()})
        if value is not None and not isinstance(value, str):
            return json.dumps([float(weight) for weight in value])
    except (TypeError, ValueError):
        raise UserError(f"class_weight is {value!r}: {EXPECTED}") from None
    return value


def parse(text: str) -> str | Sequence[float] | Mapping[str, float]:
    """ "balanced", a weight per class, or weights by class: a text that is neither is refused."""
    if text == BALANCED:
        return text
    found: Any
    try:
        if text.lstrip().startswith(("[", "{")):
            found = json.loads(text)
        elif "=" in text:
            pairs = [part.rpartition("=") for part in text.split(",")]
            found = {name.strip(): float(weight) for name, _, weight in pairs}
        else:
            found = [float(weight) for weight in text.split(",")]
        numbers = list(found.values() if isinstance(found, dict) else found)
        right = numbers and all(0 < number < math.inf for number in numbers)
    except (ValueError, TypeError, RecursionError):
        right = False
    if not right:
        raise UserError(f"class_weight is {text!r}: {EXPECTED}")
    return found


def counts_of(y: Tensor, num_classes: int) -> Tensor:
    """[C] nodes of each class, or [2, C] nodes without and with each label; they can be added."""
    if y.dim() == 1:
        return torch.bincount(y.long(), minlength=num_classes).double()
    having = (y > 0).sum(0).double()
    return torch.stack([len(y) - having, having])


def class_weights(text: str, counts: Tensor, names: Sequence[str] = ()) -> Tensor:
    """[C], or [2, C] for labels, in the shape of the training nodes' ``counts``.

    ``names``: of the classes; left out: their numbers.
    """
    wanted, several = parse(text), counts.dim() == 2
    classes = counts.size(-1)
    if wanted == BALANCED:
        held = counts > 0
        kinds = 2 if several else held.sum()
        return torch.where(held, counts.sum(0) / (kinds * counts.clamp(min=1)), 1.0).float()
    weight = torch.ones(classes)
    if isinstance(wanted, Mapping):
        known = {**{str(c): c for c in range(classes)}, **{name: c for c, name in enumerate(names)}}
        for name, number in wanted.items():
            if name not in known:
                raise unknown_name("class of class_weight", name, names or list(known))
            weight[known[name]] = number
    elif len(wanted) != classes:
        raise UserError(
            f"class_weight has {len(wanted)} weights, but the data has {classes} classes: expected "
            "one for each, or give some by name, as in spam=5"
        )
    else:
        weight = torch.tensor(wanted, dtype=torch.float)
    return torch.stack([torch.ones(classes), weight]) if several else weight


def of_nodes(weights: Tensor, y: Tensor) -> Tensor:
    """The weight of each node [n], or of each node and label [n, C]."""
    if weights.dim() == 1:
        return weights.index_select(0, y)
    return torch.where(y > 0, weights[1], weights[0])
