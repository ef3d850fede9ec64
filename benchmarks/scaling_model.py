"""A model of step time and memory in many processes: checked against what was measured, then used.

    python benchmarks/scaling_model.py             # epochs measured, every check, predictions
    python benchmarks/scaling_model.py --brief     # one line per kind of check
    python benchmarks/scaling_model.py --network 25 --nvlink 300

    step = compute(own, halo, edges) + messages · latency + rows of the halo / bandwidth

without overlap, and the larger of the two parts with it. What a process computes, and all fitted
constants, are in ``scaling_fits.py`` and ``scaling_team.py`` beside this; the rates of links that
nobody measured here are arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from deepgat.lab.bench.random_graphs import hub_rich
from scaling_fits import Check, Device, Halos, Work, rows_of, without_structure
from scaling_team import Team, measured

BESIDE = 8
"""GPUs in a host."""
MODELS = {
    "DeepGAT": Work(0, 0, 0, 15, heads=8, hidden=8, classes=47, segment=1),
    "`deep`": Work(0, 0, 0, 16, heads=1, hidden=64, classes=47, symmetric=True, segment=1),
}
GRAPHS = (
    ("2.4M nodes, 125M edges", 2_449_029, 124_976_288, "metis", (1, 8, 64)),
    ("100M nodes, 10G edges", 10**8, 10**10, "stream", (64, 512)),
)
"""Edges in both directions, without loops: the graph of ``deepgat bench large``, and a huge one."""


@dataclass(frozen=True)
class Links:
    """Assumed, not measured: bytes a second into a GPU, and seconds of a message to all."""

    nvlink: float
    network: float
    latency: float


class Prediction(NamedTuple):
    compute: float
    sending: float
    gigabytes: float
    bound: str


def predict(
    gpu: Device, whole: Work, parts: int, halo: float, links: Links, features: int
) -> Prediction:
    """A step on one of ``parts`` equal parts, whose halos are ``halo`` · n together.

    Rows come from all other parts alike: from those of the host by NVLink, from the others by the
    network, both at once. Memory is the step's, the neighbour lists' and the features'.
    """
    own = whole.own / parts
    work = replace(whole, own=own, halo=halo * own, edges=whole.edges / parts)
    outside = max(parts - BESIDE, 0) / max(parts - 1, 1)
    gathering, rows = gpu.rates * work.costs()
    compute = gpu.seconds(work)
    terms = {
        "launches": compute if compute > gathering + rows else 0.0,
        "gathering": gathering,
        "rows of nodes": rows,
        "NVLink": (1 - outside) * work.received() / links.nvlink,
        "network": outside * work.received() / links.network,
        "latency": (parts > 1) * links.latency * work.messages(),
    }
    sending = max(terms["NVLink"], terms["network"]) + terms["latency"]
    held = gpu.bytes(work) + bytes_per_edge() * work.edges + 4 * features * own
    return Prediction(compute, sending, held / 1e9, max(terms, key=lambda name: terms[name]))


def bytes_per_edge() -> int:
    lists = hub_rich(10, 20)
    names = ("source", "target", "by_source", "target_by_source")
    return sum(getattr(lists, name).element_size() for name in names)


def predictions(
    gpu: Device, laws: dict[str, Halos], options: argparse.Namespace
) -> Iterator[list[str]]:
    links = Links(1e9 * options.nvlink, 1e9 * options.network, 1e-6 * options.latency)
    for graph, nodes, edges, method, counts in GRAPHS:
        degree = edges / nodes
        for model, shape in MODELS.items():
            whole = replace(shape, own=nodes, edges=edges + nodes)
            one = gpu.seconds(whole)
            for parts in counts:
                halos = {method: laws[method].per_node(parts, degree)}
                halos["no structure"] = without_structure(parts, degree)
                for kind, halo in halos.items() if parts > 1 else [("one part", 0.0)]:
                    found = predict(gpu, whole, parts, halo, links, options.features)
                    step = found.compute + found.sending
                    times = (found.compute, found.sending, step, max(found[:2]), one / step)
                    fits = "" if found.gigabytes < options.memory else " (too much)"
                    cells = [f"{x:.2g}" if x < 10 else f"{x:.0f}" for x in times]
                    cells += [f"{found.gigabytes:,.0f}{fits}", found.bound]
                    yield [graph, model, str(parts), f"{halo:.2g} ({kind})", *cells]


def each(checks: list[Check]) -> Iterator[list[str]]:
    for what, where, model, found in checks:
        yield [what, where, f"{model:,.4g}", f"{found:,.4g}", f"{model / found:.2f}"]


def by_kind(checks: list[Check]) -> Iterator[list[str]]:
    for what in dict.fromkeys(check.what for check in checks):
        ratios = np.array([c.predicted / c.measured for c in checks if c.what == what])
        typical = np.exp(np.median(np.abs(np.log(ratios)))) - 1
        numbers = [f"{x:.2f}" for x in (ratios.min(), np.median(ratios), ratios.max())]
        yield [what, str(len(ratios)), *numbers, f"{typical:.0%}"]


def show(heads: str, rows: Iterator[list[str]]) -> None:
    print(f"| {heads} |\n|" + "---|" * (heads.count("|") + 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvlink", type=float, default=450, help="GB/s into a GPU (H200: 450)")
    parser.add_argument("--network", type=float, default=50, help="GB/s a GPU (400 Gbit/s: 50)")
    parser.add_argument("--latency", type=float, default=30, help="microseconds of a message")
    parser.add_argument("--memory", type=float, default=141, help="GB of a GPU (H200: 141)")
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--brief", action="store_true", help="kinds of checks, not every one")
    options = parser.parse_args()
    stored = rows_of("scaling-2-cores")
    gpu = Device("H200", rows_of("h200"))
    laws = {method: Halos(stored, method) for method in ("metis", "stream")}
    cores = Device("2 cores", rows_of("cpu-2-cores"))
    team = Team(stored, rows_of("part-memory"))
    checks = gpu.checks() + cores.checks() + team.checks()
    checks += [check for law in laws.values() for check in law.checks()]
    heads = (
        "epoch | processor, s | clock, s | messages | rows sent, MB | by the link, MB | memory, MB"
    )
    show(heads, measured(stored))
    if not options.brief:
        show("what | where | model | measured | ratio", each(checks))
    show("what | rows | lowest ratio | median | highest | typical error", by_kind(checks))
    heads = (
        "graph | model | GPUs | halo / own | compute, s | sending, s | step, s | overlapped, s | "
    )
    heads += "× one GPU | GB each | bound by"
    show(heads, predictions(gpu, laws, options))


if __name__ == "__main__":
    main()
