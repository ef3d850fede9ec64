"""Splits into training, validation and test nodes, written as short texts.

======================  ==============================================================
text                    meaning
======================  ==============================================================
``public``              the masks that come with the dataset
``authors``             the paper's code: seed 42, 20 train and 30 validation per class
``random:S:T/V``        seed S, T train and V validation nodes per class, the rest test
``fractions:T/V:S``     shares T and V of the labelled nodes, stratified by class, seed S
``stored:K``            the K-th (from 0) of the splits stored with the dataset
======================  ==============================================================

``random`` and ``random:S`` mean 20/30; the default seed is 0. ``str(split)`` writes every part, so
that equal splits have equal texts.
"""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.errors import UserError, unknown_name

_SHARE = r"\d*\.?\d+(?:e-?\d+)?"
GRAMMAR = {
    "public": ("public", "public"),
    "authors": ("authors", "authors"),
    "random": (
        r"random(?::(?P<seed>\d{1,18})(?::(?P<train>\d{1,18})/(?P<val>\d{1,18}))?)?",
        "random[:SEED[:TRAIN/VAL]] with whole numbers, as in random:0:20/30",
    ),
    "fractions": (
        rf"fractions:(?P<train>{_SHARE})/(?P<val>{_SHARE})(?::(?P<seed>\d{{1,18}}))?",
        "fractions:TRAIN/VAL[:SEED] with shares from 0 to 1, as in fractions:0.6/0.2:0",
    ),
    "stored": (r"stored:(?P<index>\d{1,18})", "stored:K with a whole number, as in stored:0"),
}
"""Kind → the pattern of its text, and how a message explains it."""
AUTHORS_SEED = 42
PER_CLASS = (20, 30)


@dataclass(frozen=True)
class Split:
    """A split of one of the five kinds, with its parameters.

    ``train`` and ``val`` are counts per class (``random``, ``authors``) or shares of all labelled
    nodes (``fractions``); ``index`` is the number of a stored split.
    """

    kind: str
    seed: int = 0
    train: float = 0
    val: float = 0
    index: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "random":
                return f"random:{self.seed}:{self.train}/{self.val}"
            case "fractions":
                return f"fractions:{self.train}/{self.val}:{self.seed}"
            case "stored":
                return f"stored:{self.index}"
        return self.kind


def parse_split(text: str) -> Split:
    """Parse the text of a split; a :class:`UserError` shows the grammar."""
    plain = text.strip().lower()
    kind = plain.split(":")[0]
    if re.match(r"\.?\d", kind):  # shares, most likely
        kind = "fractions"
    if kind not in GRAMMAR:
        raise unknown_name("split", kind, GRAMMAR)
    pattern, written = GRAMMAR[kind]
    found = re.fullmatch(pattern, plain, re.ASCII)
    if found is None:
        raise UserError(f"cannot read the split {text!r}: write {written}")
    parts = found.groupdict()
    seed = int(parts.get("seed") or 0)
    match kind:
        case "authors":
            return Split(kind, AUTHORS_SEED, *PER_CLASS)
        case "random":
            counts = (parts["train"], parts["val"]) if parts["train"] else PER_CLASS
            return Split(kind, seed, *map(int, counts))
        case "fractions":
            train, val = float(parts["train"]), float(parts["val"])
            if train + val > 1 + 1e-9:
                raise UserError(f"the shares of the split {text!r} add up to more than 1")
            return Split(kind, seed, train, val)
        case "stored":
            return Split(kind, index=int(parts["index"]))
    return Split(kind)


def draw_masks(split: Split, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the train, validation and test masks [n] of a random split.

    ``authors`` and ``random``: the nodes of each class are shuffled. The first ``train`` nodes
    train, the next ``val`` validate, the rest test. A class that is too small fills the training
    set first, then the validation set.

    ``fractions``: the nodes of each class are shuffled, then split so that the running totals over
    the classes are the shares, rounded to whole nodes. Even classes of one node are distributed
    fairly. With several labels per node [n, C] there is no stratification.

    Nodes with y = −1 are in no mask. Torch's global random state is neither read nor changed.
    """
    labels = y.detach().cpu()
    if labels.dim() > 1:
        if split.kind != "fractions":
            raise UserError(
                f"the split {str(split)!r} counts nodes per class, but here a node has several "
                "labels: use fractions:TRAIN/VAL instead"
            )
        labels = torch.zeros(len(labels), dtype=torch.long)
    # A separate generator gives the same permutations as torch.manual_seed.
    generator = torch.Generator().manual_seed(split.seed)
    masks = torch.zeros(3, len(labels), dtype=torch.bool)
    seen = trained = validated = 0
    sizes = torch.bincount(labels + 1, minlength=1).tolist()  # the unlabelled first
    for nodes in labels.argsort(stable=True).split(sizes)[1:]:
        index = nodes[torch.randperm(len(nodes), generator=generator)]
        if split.kind == "fractions":
            seen += len(index)
            train = min(len(index), _round(split.train * seen) - trained)
            val = min(len(index) - train, _round(split.val * seen) - validated)
            trained, validated = trained + train, validated + val
        else:
            train, val = int(split.train), int(split.val)
        masks[0, index[:train]] = True
        masks[1, index[train : train + val]] = True
        masks[2, index[train + val :]] = True
    train_mask, val_mask, test_mask = masks.to(y.device)
    return train_mask, val_mask, test_mask


def _round(value: float) -> int:
    # Rounds halves up; the small term makes up for rounding errors such as in 0.1 + 0.2.
    return math.floor(value + 0.5 + 1e-9)
