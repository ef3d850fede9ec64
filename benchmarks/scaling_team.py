"""Epochs of one and two processes (``benchmarks/two_hosts.py``) against the model of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scaling_fits import Check, Row, Work, fitted, gradients


class Team:
    """Rows are epochs, a step and an evaluation, of processes with one core each.

    Processor time and memory are fitted to the teams' rows. The clock's time is not: it is the
    processor's, stretched as in two processes on one host, and what the link's own rows say that
    messages and bytes take.
    """

    def __init__(self, rows: list[Row], peaks: list[Row]) -> None:
        self.rows = [row for row in rows if row["suite"] == "scaling"]
        links = [row for row in rows if row["suite"] == "link"]
        self.links = {(row["hosts"], row.get("limit_mbit")): row for row in links}
        together = [pair for row in self.rows if row["team"] for pair in worked(row)]
        self.rates = fitted([(costs(work), time) for work, time in together])
        alone = [pair for row in self.rows if not row["team"] for pair in worked(row)]
        self.alone = float(np.median([time / self.seconds(work) for work, time in alone]))
        """What the same takes without a team, whose kernels know that the graph is undirected."""
        here = [row for row in self.rows if row["processes"] == 2 and row["hosts"] == 1]
        clocks = [row["epoch_seconds"] - self.sending(row) for row in here]
        busy = [max(row["processor_seconds"]) for row in here]
        self.stretch = float(np.median(np.array(clocks) / np.array(busy)))
        """Other work on the machine, and waiting for the process that it delayed most."""
        found = [
            (f"{row['dataset']} {row['preset']}", pair)
            for row in self.rows
            for pair in zip(shares(row), row["peak_bytes_above_start"], strict=True)
        ]
        large = [(row["graph"], (shares(row)[0], 1e6 * row["peak_megabytes"])) for row in peaks]
        self.peaks = (found, large)
        """The most that the system gave, freed blocks included; and without those."""

    def seconds(self, work: Work) -> float:
        return float(self.rates @ costs(work))

    def sending(self, row: Row) -> float:
        link = self.links[row["hosts"], row.get("limit_mbit")]
        work = max(shares(row), key=lambda item: item.halo)
        load = work.received(1) + gradients(row["parameters"], row["processes"])
        return work.messages(1) * link["latency_seconds"] + load / link["bytes_per_second"]

    def checks(self) -> list[Check]:
        found = []
        for row in self.rows:
            where = place(row)
            busy = max(map(self.seconds, shares(row))) * (1 if row["team"] else self.alone)
            found.append(Check("processor, s", where, busy, max(row["processor_seconds"])))
            if row["processes"] == 1:
                continue
            clock = self.stretch * busy + self.sending(row)
            mine = sum(work.received(1) for work in shares(row)) / 1e6
            sums = 2 * gradients(row["parameters"], 2) / 1e6
            count = shares(row)[0].messages(1)
            found += [
                Check("clock, s", where, clock, row["epoch_seconds"]),
                Check("messages", where, count, row["messages_per_epoch"][0]),
                Check("rows sent, MB", where, mine, sum(row["sent_bytes_per_epoch"]) / 1e6),
            ]
            wire = sum(row["interface_bytes_per_epoch"]) / 1e6
            if wire:
                found.append(Check("on the link, MB", where, mine + sums, wire))
        for kind in self.peaks:
            memory = fitted([(held(work), peak) for _, (work, peak) in kind])
            for name, (work, peak) in kind:
                where = f"{name}, L={work.layers}, {work.own:,} own + {work.halo:,}"
                predicted = float(memory @ held(work)) / 1e6
                found.append(Check("process memory, MB", where, predicted, peak / 1e6))
        return found


def place(row: Row) -> str:
    how = "without a team" if not row["team"] else f"team of {row['processes']}"
    link = f", {row['limit_mbit']} Mbit/s" if row["hosts"] == 2 else ""
    return f"{row['dataset']} {row['preset']}, L={row['layers']}, {how}{link}"


def measured(rows: list[Row]) -> Iterator[list[str]]:
    """Epochs as they were measured, a line each; of several processes the largest figure."""
    for row in rows:
        if row["suite"] == "scaling":
            seconds = [f"{x:.2f}" for x in (max(row["processor_seconds"]), row["epoch_seconds"])]
            names = ("sent_bytes_per_epoch", "interface_bytes_per_epoch", "peak_bytes_above_start")
            sizes = [f"{max(row[name]) / 1e6:,.0f}" if max(row[name]) else "" for name in names]
            yield [place(row), *seconds, str(max(row["messages_per_epoch"])), *sizes]


def shares(row: Row) -> list[Work]:
    """Every process's work; loops are edges too."""
    sizes = [np.atleast_1d(row[name]).tolist() for name in ("own", "halo", "edges")]
    shape = (row["layers"], row["heads"], row["hidden"], row["classes"])
    symmetric = row.get("preset", "deep") == "deep"
    return [
        Work(own, halo, edges + own, *shape, symmetric)
        for own, halo, edges in zip(*sizes, strict=True)
    ]


def worked(row: Row) -> list[tuple[Work, float]]:
    return list(zip(shares(row), row["processor_seconds"], strict=True))


def costs(work: Work) -> np.ndarray:
    """The layers' bytes, what a node costs besides (its features), and what a layer does."""
    return np.append(work.costs(), [work.own, work.layers])


def held(work: Work) -> np.ndarray:
    """Activations, neighbour lists while they are sorted, and what every process has."""
    return np.append(work.kept(), [work.edges, 1.0])
