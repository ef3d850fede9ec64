"""What test nodes say of a model's probabilities: tables and values of evaluate and predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from deepgat.analysis import (
    Calibration,
    Reliability,
    predicted_labels,
    reliability,
    risk_coverage,
    set_coverage,
)
from deepgat.analysis.calibration import BINS, confidence_and_hits
from deepgat.analysis.conformal import check_coverage
from deepgat.cli.show import OUT, percent, print_table
from deepgat.data import NodeDataset
from deepgat.data.names import Names
from deepgat.errors import UserError, cut_middle

Coverage = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Sets of classes that hold the true one with this probability, e.g. 0.9.",
    ),
]
ClassConditional = Annotated[
    bool, typer.Option("--class-conditional", help="--coverage in each class by itself.")
]
THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Confidences at which the table of abstention has a row."""
LONGEST = 20
"""Columns of a class's name in the confusion matrix."""


def check_sets(coverage: float | None, class_conditional: bool) -> None:
    """Refuse options for prediction sets that are wrong or do not go together."""
    if class_conditional and coverage is None:
        raise UserError("--class-conditional is a kind of --coverage: give that too")
    if coverage is not None:
        check_coverage(coverage)


@dataclass(frozen=True, eq=False)
class TestNodes:
    """Test nodes of one or more models: n nodes, C classes."""

    __test__ = False  # to pytest

    raw: Tensor
    """[n, C]: probabilities as trained."""
    shares: Tensor
    """[n, C]: calibrated probabilities."""
    predicted: Tensor
    """[n] classes, or [n, C] bool."""
    y: Tensor
    sets: Tensor | None = None
    """[n, C] bool, where a coverage was asked for."""

    @staticmethod
    def of(
        data: NodeDataset,
        logits: Sequence[Tensor],
        calibration: Calibration,
        coverage: float | None = None,
        class_conditional: bool = False,
    ) -> TestNodes:
        """From the logits [n, C] of each of the data's graphs."""
        graphs = list(zip(data.graphs, logits, strict=True))
        z = torch.cat([each[graph.test_mask] for graph, each in graphs]).float()
        y, multi = torch.cat([graph.y[graph.test_mask] for graph, _ in graphs]), data.multi_label
        return TestNodes(
            Calibration().probabilities(z, multi),
            calibration.probabilities(z, multi),
            predicted_labels(z, multi),
            y,
            None if coverage is None else calibration.sets(z, coverage, class_conditional),
        )

    @staticmethod
    def together(several: Sequence[TestNodes]) -> TestNodes:
        """The nodes of all models."""
        sets = [each.sets for each in several if each.sets is not None]
        return TestNodes(
            torch.cat([each.raw for each in several]),
            torch.cat([each.shares for each in several]),
            torch.cat([each.predicted for each in several]),
            torch.cat([each.y for each in several]),
            torch.cat(sets) if sets else None,
        )

    def __len__(self) -> int:
        return len(self.y)

    def curves(self) -> dict[str, Reliability]:
        """Reliability before and after calibration."""
        return {
            "as trained": reliability(self.raw, self.y),
            "calibrated": reliability(self.shares, self.y),
        }

    def confusion(self) -> np.ndarray:
        """[C, C]: rows are true, columns predicted classes; [C, 2, 2] for independent labels."""
        from sklearn.metrics import (  # here: importing it takes a second
            confusion_matrix,
            multilabel_confusion_matrix,
        )

        y, predicted = self.y.cpu().numpy(), self.predicted.cpu().numpy()
        if y.ndim == 2:
            return np.asarray(multilabel_confusion_matrix(y > 0, predicted))
        return np.asarray(confusion_matrix(y, predicted, labels=range(self.raw.size(1))))

    def answered(self, threshold: float | None = None) -> list[dict[str, Any]]:
        """Share of nodes answered and accuracy, at :data:`THRESHOLDS` and at this one."""
        if self.y.dim() == 2:
            raise UserError("--abstain needs one class per node: this model predicts labels")
        all_of_them = sorted({*THRESHOLDS, *(() if threshold is None else (threshold,))})
        points = risk_coverage(*confidence_and_hits(self.shares, self.y), all_of_them)
        return [point._asdict() for point in points]


def reliability_record(curves: Mapping[str, Reliability]) -> dict[str, list[dict[str, float]]]:
    """A table per nonempty bin of confidence."""
    return {
        name: [
            {
                "from": place / BINS,
                "to": (place + 1) / BINS,
                "nodes": int(count),
                "confidence": confidence,
                "accuracy": accuracy,
            }
            for place, count, confidence, accuracy in zip(
                curve.place.tolist(),
                curve.count.tolist(),
                curve.confidence.tolist(),
                curve.accuracy.tolist(),
                strict=True,
            )
        ]
        for name, curve in curves.items()
    }


def print_reliability(curves: Mapping[str, Reliability], where: str, what: str) -> None:
    """A row per bin of confidence that has nodes before or after calibration."""
    cells: dict[int, list[str]] = {}
    for column, bins in enumerate(reliability_record(curves).values()):
        for row in bins:
            place = round(row["from"] * BINS)
            line = cells.setdefault(place, ["–", "–", "–"] * len(curves))
            shares = (percent(row["confidence"]), percent(row["accuracy"]))
            line[3 * column : 3 * column + 3] = [str(row["nodes"]), *shares]
    rows = [
        [f"{100 * place / BINS:.0f}–{100 * (place + 1) / BINS:.0f}", *cells[place]]
        for place in sorted(cells)
    ]
    errors = ", ".join(f"{name} {100 * curve.error:.2f}" for name, curve in curves.items())
    title = f"reliability (%) of {what} {where}; calibration error: {errors}"
    heads = [f"{each}, {name}" for name in curves for each in (what, "confidence", "accuracy")]
    if OUT.is_terminal:  # the order of the title
        heads = [what, "mean", "accuracy", "calibrated", "mean", "accuracy"]
    print_table(title, ["confidence", *heads], rows)


def print_confusion(matrix: np.ndarray, names: Sequence[str], where: str) -> None:
    """Counts of true and predicted classes; on a terminal in blocks of columns that fit."""
    if matrix.ndim == 3:
        rows = [
            [name, *(str(count) for count in (each[1, 1], each[0, 1], each[1, 0], each[0, 0]))]
            for name, each in zip(names, matrix, strict=True)
        ]
        heads = ["label", "true and predicted", "only predicted", "only true", "neither"]
        print_table(f"predictions by label {where}", heads, rows)
        return
    right = [
        percent(row[place] / row.sum() if row.sum() else None) for place, row in enumerate(matrix)
    ]
    if not OUT.is_terminal:
        counts = [[name, *map(str, row)] for name, row in zip(names, matrix, strict=True)]
        table = [[*row, share] for row, share in zip(counts, right, strict=True)]
        title = f"confusion matrix {where}; rows: true, columns: predicted"
        print_table(title, ["true class", *names, "right (%)"], table)
        return
    numbered = all(name == str(place) for place, name in enumerate(names))
    labels = [
        name if numbered else cut_middle(f"{place} {name}", LONGEST)
        for place, name in enumerate(names)
    ]
    table = [[label, share] for label, share in zip(labels, right, strict=True)]
    print_confusion_blocks(matrix, table, where)


def print_confusion_blocks(matrix: np.ndarray, first: list[list[str]], where: str) -> None:
    """The matrix, a few predicted classes at a time, each time after the columns ``first``."""
    widths = [max(len(str(place)), len(str(column.max()))) + 2 for place, column in
              enumerate(matrix.T)]  # fmt: skip
    room = OUT.width - max(LONGEST, len("true class")) - len("right (%)") - 4
    blocks: list[list[int]] = [[]]
    for place, width in enumerate(widths):
        if blocks[-1] and sum(widths[each] for each in blocks[-1]) + width > room:
            blocks.append([])
        blocks[-1].append(place)
    for block in blocks:
        part = "" if len(blocks) == 1 else f", classes {block[0]} to {block[-1]}"
        title = f"confusion matrix {where}; rows: true, columns: predicted, by number{part}"
        rows = [
            [*cells, *(str(matrix[row, place]) for place in block)]
            for row, cells in enumerate(first)
        ]
        print_table(title, ["true class", "right (%)", *map(str, block)], rows)


def coverage_record(
    nodes: TestNodes, coverage: float, class_conditional: bool, names: Sequence[str]
) -> dict[str, Any]:
    """How the sets fare on the test nodes, together and by class."""
    assert nodes.sets is not None
    found = set_coverage(nodes.sets, nodes.y)
    sizes = nodes.sets.sum(1).double()
    own = [nodes.y == place for place in range(len(names))]
    return {
        "wanted": coverage,
        "class_conditional": class_conditional,
        "nodes": len(nodes),
        "coverage": found.coverage,
        "mean_size": found.size,
        "single": found.single,
        "classes": [
            {
                "class": name,
                "nodes": int(mask.sum()),
                "coverage": share,
                "mean_size": float(sizes[mask].mean()) if bool(mask.any()) else None,
            }
            for name, mask, share in zip(names, own, found.by_class, strict=True)
        ],
    }


def print_coverage(record: Mapping[str, Any], where: str) -> None:
    """A row per class, and one for all."""
    kind = " in each class" if record["class_conditional"] else ""
    rows = [
        [
            each["class"],
            str(each["nodes"]),
            percent(each["coverage"]),
            "–" if each["mean_size"] is None else f"{each['mean_size']:.2f}",
        ]
        for each in record["classes"]
    ]
    whole = [str(record["nodes"]), percent(record["coverage"]), f"{record['mean_size']:.2f}"]
    title = f"prediction sets {where}, asked to hold the class of {100 * record['wanted']:g}%{kind}"
    heads = ["true class", "nodes", "coverage (%)", "mean size"]
    print_table(title, heads, rows, ["all", *whole])


def print_answered(rows: Sequence[Mapping[str, Any]], where: str) -> None:
    """The risk–coverage curve: a row per threshold."""
    cells = [
        [f"{row['threshold']:g}", percent(row["share"]), percent(row["accuracy"])] for row in rows
    ]
    heads = ["least confidence", "answered (%)", "accuracy of answers (%)"]
    print_table(f"abstention {where}: nodes below a confidence get no answer", heads, cells)


def always_included(
    calibration: Calibration, coverage: float, class_conditional: bool, names: Names
) -> str:
    """A sentence on the classes that are in every set, for lack of validation nodes; or nothing."""
    limits = calibration.limits(coverage, class_conditional)
    always = limits.isinf().nonzero().view(-1).tolist()
    if not always:
        return ""
    few = "validation nodes are too few for this coverage"
    if not class_conditional:
        return f"every set holds all classes: {few}"
    told = ", ".join(names.label(place) for place in always[:5])
    more = f" and {len(always) - 5} more" if len(always) > 5 else ""
    return f"every set holds {told}{more}: their {few}"
