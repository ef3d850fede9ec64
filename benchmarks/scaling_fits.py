"""What one process has to do in a step, and what that costs: fitted to stored measurements.

With n = own + halo nodes, E edges, L layers, H heads of D and C classes, a step computes for

    L · max(launch, a · E · 4H(3D + 2C) + b · n · 4H(D + C))      bytes gathered, bytes of rows

(``benchmarks/scaling_model.py`` adds what is sent). The constants come from ``benchmarks/results``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

Row = dict[str, Any]
RESULTS = Path(__file__).with_name("results")
SUMS = 6
"""Messages of an epoch for losses, scores and gradients."""
FIT_EDGES = 10**7
"""A large graph: launches do not matter from here on."""
CLASSES = {"cs": 15, "physics": 5, "random, hub-rich": 47}
"""Of the graphs that ``deepgat bench`` runs on; 5 elsewhere."""


class Check(NamedTuple):
    what: str
    where: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class Work:
    """One process's share of a step."""

    own: float
    halo: float
    edges: float
    layers: int
    heads: int
    hidden: int
    classes: int
    symmetric: bool = False
    """``deep``: symmetric weights, no gradient through scores; two messages a layer, one back."""
    segment: int = 0
    """Layers that are computed again together, and their rows sent again; 0 for none."""

    @property
    def again(self) -> bool:
        return self.segment > 0

    @property
    def widths(self) -> np.ndarray:
        """Bytes of a node's [values, scores]."""
        return 4.0 * self.heads * np.array([self.hidden, self.classes])

    def costs(self) -> np.ndarray:
        """[bytes gathered, bytes of nodes' rows]; a pass forward is a third of the latter."""
        d, c = self.widths
        gathered = self.edges * (3 * d + 2 * c + self.again * (d + c))
        rows = (self.own + self.halo) * (d + c) * (1 + self.again / 3)
        return self.layers * np.array([gathered, rows])

    def kept(self) -> np.ndarray:
        """Bytes of [values, scores] of all layers."""
        return self.layers * (self.own + self.halo) * self.widths

    def received(self, evaluations: int = 0) -> float:
        """Bytes of neighbours' rows in a step, and in so many passes forward besides."""
        d, c = self.widths
        forward = (1 + self.again + evaluations) * (d + c)
        return float(self.layers * self.halo * (forward + (d if self.symmetric else d + c)))

    def messages(self, evaluations: int = 0) -> int:
        forward = (1 + self.again + evaluations) * (2 if self.symmetric else 1)
        return self.layers * (forward + 1) + SUMS


def gradients(parameters: int, processes: int) -> float:
    """Bytes that a process sends to have gradients summed: stretches there, sums back."""
    return 2 * 4 * parameters * (processes - 1) / processes


def fitted(pairs: list[tuple[np.ndarray, float]]) -> np.ndarray:
    """Constants, none negative, with the least squares of the relative errors of (costs, found)."""
    amounts = np.stack([costs / found for costs, found in pairs])
    scale = amounts.max(0)
    return nnls(amounts / scale, np.ones(len(pairs)))[0] / scale


def rows_of(name: str) -> list[Row]:
    rows: list[Row] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


class Device:
    """What ``deepgat bench`` measured on a device: steps of one process that has all of a graph.

    A GPU's time is fitted to its large rows alone, of which gathering leaves the cache (small ones,
    replayed without launches, are checks), and what launches cost to the small ones.
    """

    def __init__(self, name: str, rows: list[Row]) -> None:
        self.name = name
        ways = ("deepgat", "none", "layer", "sqrt", "projections")
        networks = [row for row in rows if row["suite"] != "layer" and "edges" in row]
        mine = [row for row in networks if row["way"].split(",")[0] in ways]
        self.rows = [(row, bench_work(row)) for row in mine]
        kept = [(row, work) for row, work in self.rows if row["way"] in ("deepgat", "none")]
        large = [(row, work) for row, work in kept if row["edges"] >= FIT_EDGES]
        small = [(row, work) for row, work in kept if row["edges"] < FIT_EDGES]
        timed = [(work.costs(), row["milliseconds"] / 1e3) for row, work in large or small]
        self.rates = fitted(timed)
        calls = [row["milliseconds"] / 1e3 / work.layers for row, work in small]
        self.launch = float(np.median(calls)) if large else 0.0
        self.kept = fitted([(work.kept(), 1e6 * row["peak_megabytes"]) for row, work in small])
        self.at_once = float(np.mean([
            (1e6 * row["peak_megabytes"] - inputs(work)) / self.layer(work)
            for row, work in self.rows if work.segment == 1 and work.layers < 100
        ]))  # fmt: skip
        """What a layer that is computed again holds, against what it would keep."""

    def seconds(self, work: Work, launches: bool = True) -> float:
        least = launches * self.launch * work.layers * (1 + work.again)
        return max(least, float(self.rates @ work.costs()))

    def layer(self, work: Work) -> float:
        return float(self.kept @ replace(work, layers=1).kept())

    def bytes(self, work: Work) -> float:
        """All layers' activations; or the segments' inputs, and one segment's activations."""
        if work.again:
            layers = self.at_once if work.segment == 1 else work.segment
            return inputs(work) / work.segment + layers * self.layer(work)
        return work.layers * self.layer(work)

    def checks(self) -> list[Check]:
        found = []
        for row, work in self.rows:
            where = f"{row['graph']}, {row['edges']:,} edges, H={work.heads}, L={work.layers}, "
            where += row["way"]
            launches = "replayed" not in row["way"] and "graphed" not in row["way"]
            predicted = 1e3 * self.seconds(work, launches)
            found.append(Check(f"{self.name} step, ms", where, predicted, row["milliseconds"]))
            if row["peak_megabytes"] and "projections" not in row["way"]:
                held = self.bytes(work) / 1e6
                found.append(Check(f"{self.name} memory, MB", where, held, row["peak_megabytes"]))
        return found


def bench_work(row: Row) -> Work:
    heads, layers = row.get("heads", 8), row.get("layers", 1)
    segment = round(math.sqrt(layers)) if row["way"] == "sqrt" else 0
    if row["way"] in ("layer", "deepgat, layers again") or row["suite"] == "large":
        segment = 1
    classes = CLASSES.get(row["graph"], 5)
    return Work(row["nodes"], 0, row["edges"], layers, heads, 64 // heads, classes, segment=segment)


def inputs(work: Work) -> float:
    return float(work.layers * work.own * work.widths[0])


class Halos:
    """Σ halo / n = a · d^g · (log₂ parts)^b at a mean degree d, or less: without_structure."""

    def __init__(self, rows: list[Row], method: str) -> None:
        self.method = method
        self.rows = [row for row in rows if row["suite"] == "halo" and row["method"] == method]
        columns = [self.terms(row["parts"], row["edges"] / row["nodes"]) for row in self.rows]
        amounts = np.log([row["halo_per_node"] for row in self.rows])
        self.law = np.linalg.lstsq(np.array(columns), amounts, rcond=None)[0]

    @staticmethod
    def terms(parts: int, degree: float) -> list[float]:
        return [1.0, math.log(degree), math.log(math.log2(parts))]

    def per_node(self, parts: int, degree: float) -> float:
        if parts == 1:
            return 0.0
        law = math.exp(self.law @ self.terms(parts, degree))
        return min(law, without_structure(parts, degree))

    def checks(self) -> list[Check]:
        found = []
        for row in self.rows:
            where = f"{row['graph']}, {row['parts']} parts by {self.method}"
            law = self.per_node(row["parts"], row["edges"] / row["nodes"])
            found.append(Check("halo / n", where, law, row["halo_per_node"]))
        return found


def without_structure(parts: int, degree: float) -> float:
    """Σ halo / n where neighbours are anywhere: nothing that a partition could find."""
    return (parts - 1) * (1 - (1 - 1 / parts) ** degree)
