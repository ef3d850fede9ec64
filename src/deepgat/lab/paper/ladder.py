"""The ladder: test accuracy of ``deep`` against the share p of right classes in its attention.

``deep`` attends by its own class predictions q. On the ladder, given classes take their place in
every attending layer: the true class of a share p of the nodes, and a wrong one of the others
(:class:`~deepgat.models.DeepOracle`). Body and training stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepgat.data.catalogue.entries import find_entry
from deepgat.errors import UserError
from deepgat.lab.experiments.spec import AnalysisSpec, RunSpec
from deepgat.lab.paper.depths import DATASETS, Change, depth_specs

LADDER = "ladder"
DEEP, NO_ATTENTION = "deep", "deep, no class attention"
RIGHT = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""p of every rung."""
LAYERS, QUICK_LAYERS = (16,), (8,)
LADDER_DATASETS = (*DATASETS, "photo")
MEASURE = "layer-accuracy"
"""What is measured on the runs of ``deep``."""


def rung(right: float) -> str:
    """The row of a share p."""
    return f"p = {100 * right:.0f}%"


RUNGS: Mapping[str, float] = {rung(right): right for right in RIGHT}
"""Row → p."""
ROWS: Mapping[str, tuple[str, Sequence[Change]]] = {
    NO_ATTENTION: ("deep-cora", [Change({"sharpness": 0.0})]),
    DEEP: ("deep-cora", [Change()]),
    **{label: ("deep-oracle-cora", [Change({"right": right})]) for label, right in RUNGS.items()},
}
"""Row → its shipped setting and what is changed in it."""


def ladder_specs(
    *,
    quick: bool = False,
    datasets: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    **grid: Any,
) -> dict[str, list[RunSpec]]:
    """Row → its runs; the arguments as in :func:`~deepgat.lab.paper.depths.depth_specs`."""
    if datasets is None and not quick:
        datasets = LADDER_DATASETS
    for name in datasets or ():
        if find_entry(name).multi_label:
            raise UserError(
                f"ladder shows the attention one class per node, and a node of {name} has several "
                "labels: leave it out of the datasets"
            )
    layers = layers or (QUICK_LAYERS if quick else LAYERS)
    labelled = depth_specs(ROWS, quick=quick, datasets=datasets, layers=layers, **grid)
    measured = AnalysisSpec((MEASURE,))
    if DEEP in labelled:
        labelled[DEEP] = [replace(spec, analysis=measured) for spec in labelled[DEEP]]
    return labelled
