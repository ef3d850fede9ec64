"""PyG transforms to run once before training. None of them modifies its input."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from deepgat.data.label_features import one_hot_labels, propagate_labels
from deepgat.data.splits import Split, draw_masks, parse_split
from deepgat.errors import UserError

SPLITS = ("train", "val", "test")
MASKS = tuple(f"{name}_mask" for name in SPLITS)


class SplitNodes(BaseTransform):
    """Sets ``train_mask``, ``val_mask`` and ``test_mask`` [n] from a :class:`Split` or its text.

    ``stored:K`` takes column K of existing masks [n, k]; ``public`` keeps existing masks [n].
    Unlabelled nodes (y = −1) are removed from the masks. ``name`` is the graph's name in errors.
    """

    def __init__(self, split: Split | str, name: str = "this graph") -> None:
        self.split = parse_split(split) if isinstance(split, str) else split
        self.name = name

    def forward(self, data: Any) -> Any:
        for key, mask in zip(MASKS, self._masks(data), strict=True):
            data[key] = mask
        require_nodes([data], self.split, self.name)
        return data

    def _masks(self, data: Data) -> tuple[Tensor, ...]:
        if self.split.kind not in ("public", "stored"):
            return draw_masks(self.split, data.y)
        masks = self._given(data)
        return tuple(mask & (data.y >= 0) if data.y.dim() == 1 else mask for mask in masks)

    def _given(self, data: Data) -> list[Tensor]:
        masks = [data[key] for key in MASKS if key in data]
        count = masks[0].shape[1] if masks and masks[0].dim() == 2 else 0
        if count:
            if self.split.kind == "stored" and self.split.index < count:
                return [mask[:, self.split.index].clone() for mask in masks]
            choices = f"it has stored:0 to stored:{count - 1}"
        else:
            if self.split.kind == "public" and len(masks) == len(MASKS):
                return masks
            choices = "it has the split public" if masks else "it comes without splits"
        raise UserError(
            f"{self.name} has no split {str(self.split)!r}: {choices}, and random:SEED or "
            "fractions:TRAIN/VAL draw one"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.split)!r})"


def require_nodes(graphs: list[Data], split: Split, name: str) -> None:
    """Raise a :class:`UserError` if all graphs lack training nodes, or validation nodes."""
    for key, what, why in (
        ("train_mask", "training", "a model needs some to learn from"),
        ("val_mask", "validation", "early stopping needs some"),
    ):
        if not any(bool(graph[key].any()) for graph in graphs):
            raise UserError(
                f"the split {str(split)!r} of {name} has no {what} nodes: {why}; ask for more, "
                "as in random:0:20/30 or fractions:0.6/0.2"
            )


class PropagateLabels(BaseTransform):
    """Stores ``data.label_features`` [n, hops, C]: z_l = rm_diag(Â^(l−1)) Y for l = 1..hops.

    Y holds the labels of ``train_mask`` nodes only: no validation or test label is used, and no
    node sees its own label (see :mod:`deepgat.data.label_features`). Computed in double precision.

    Args:
        hops: number of layers with label features.
        first: ``"zero"`` (the paper) or ``"neighbor-counts"`` (the authors' code) for layer 1.
        num_classes: C; by default the largest class id in ``data.y`` plus one, over all nodes.
        dtype: dtype of the result.
    """

    def __init__(
        self,
        hops: int = 3,
        first: str = "zero",
        num_classes: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.hops = hops
        self.first: str = first
        self.num_classes = num_classes
        self.dtype = dtype

    def forward(self, data: Any) -> Any:
        if "train_mask" not in data or data.train_mask.dim() != 1:
            raise UserError("label propagation needs a train_mask: apply SplitNodes first")
        # With several labels per node, one_hot_labels raises for any number.
        count = self.num_classes or (int(data.y.max()) + 1 if data.y.numel() else 0)
        Y = one_hot_labels(data.y, data.train_mask, count)
        z = propagate_labels(data.edge_index, Y, len(data.y), self.hops, self.first)
        data.label_features = z.to(self.dtype)
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hops={self.hops}, first={self.first!r})"
