"""One process, two on one host, and two hosts with a slow link between them.

    python benchmarks/two_hosts.py --out benchmarks/results/scaling-2-cores.json     # as root

The hosts are two network namespaces of this machine joined by a veth pair; ``tc`` (a token bucket
of 20 kB on both ends) limits the rate of each direction, and nothing is added to the latency. What
the link then does for gloo is measured by itself: the time of the smallest message to all, and the
rate of large ones. Then ``benchmarks/scaling.py`` runs over it. And how large halos are is counted,
for more and more parts. Rows are written as they are made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from deepgat.data import load_graph
from deepgat.distributed import Team
from deepgat.distributed.partition import owners
from deepgat.errors import UserError
from deepgat.files import to_json, write_whole
from deepgat.lab.bench.measure import machine

Row = dict[str, Any]
SPACES, INTERFACE, ADDRESS = ("deepgat0", "deepgat1"), "deepgat", "10.77.0.1"
SCRIPT = str(Path(__file__).with_name("scaling.py"))
LINK = [__file__, "--link"]
ALONE = ("--standalone", "--nproc-per-node")
BURST = "20kb"
BIG = 2**20
"""Numbers of a large message: 4 MB to the other process."""
LINKED = (("cs", "deep", "16"), ("cs", "authors", "4"))
"""Dataset, model (authors: DeepGAT as its authors) and layers of what is run everywhere, and"""
ELSEWHERE = (("cs", "deep", "4"), ("cora", "deep", "16"), ("physics", "deep", "8"))
"""by one process and two on one host only."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=int, nargs="*", default=[1000, 200, 50], help="Mbit/s")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--only-links", action="store_true", help="measure what they do, no more")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--link", action="store_true", help="for the script's own processes")
    options = parser.parse_args()
    if options.link:
        print_link()
        return
    found: dict[str, Any] = {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(torch.device("cpu")) | {"cores": os.cpu_count()},
        "rows": [],
    }
    made = links(options.rates) if options.only_links else rows(options.rates, str(options.epochs))
    for row in made:
        print(json.dumps(row), flush=True)
        found["rows"].append(row)
        if options.out is not None:
            write_whole(options.out, to_json(found, 1))


def rows(rates: list[int], epochs: str) -> Iterator[Row]:
    yield from halos()
    yield from links([])
    for run in (*LINKED, *ELSEWHERE):
        script = training(run, epochs)
        plain = {"suite": "scaling", "hosts": 1, "team": False}
        yield plain | last_json([started([sys.executable, *script])])
        for count in ("1", "2"):
            yield plain | {"team": True} | torchrun([*ALONE, count, *script])
    for rate in rates:
        with two_hosts(rate):
            where = {"hosts": 2, "limit_mbit": rate}
            yield {"suite": "link"} | where | over_link(LINK)
            for run in LINKED:
                script = [*training(run, epochs), "--interface", INTERFACE]
                yield {"suite": "scaling", "team": True} | where | over_link(script)


def links(rates: list[int]) -> Iterator[Row]:
    yield {"suite": "link", "hosts": 1} | torchrun([*ALONE, "2", *LINK])
    for rate in rates:
        with two_hosts(rate):
            yield {"suite": "link", "hosts": 2, "limit_mbit": rate} | over_link(LINK)


def training(run: tuple[str, str, str], epochs: str) -> list[str]:
    dataset, name, layers = run
    model = ["--model", "deepgat", "--preset", name] if name == "authors" else ["--model", name]
    return [SCRIPT, dataset, *model, "--layers", layers, "--epochs", epochs]


def halos() -> Iterator[Row]:
    """Σ halo / n for more and more parts."""
    for name in ("cora", "cs", "physics"):
        graph = load_graph(name).graph
        source, target = graph.edge_index
        n = graph.num_nodes
        for method in ("metis", "stream"):
            for parts in (2, 4, 8, 16, 32, 64):
                try:
                    owner = owners(graph.edge_index, n, parts, method)
                except UserError as error:  # METIS is not there
                    print(error, file=sys.stderr)
                    break
                across = owner[source] != owner[target]
                wanted = torch.unique(source[across] * parts + owner[target[across]]).numel()
                yield {
                    "suite": "halo", "graph": name, "nodes": n, "edges": source.numel(),
                    "method": method, "parts": parts, "halo_per_node": wanted / n,
                    "cut": float(across.double().mean()),
                }  # fmt: skip


def print_link() -> None:
    """Median times by gloo: of the smallest message to all, of a large one, of one sent one way."""
    team = Team.join("cpu")
    small, big = torch.zeros(1), torch.zeros(2 * BIG)
    there, came = [torch.zeros(1) for _ in range(2)], torch.zeros(2 * BIG)
    brief = median(timed(lambda: dist.all_gather(there, small)) for _ in range(200))
    long = median(timed(lambda: dist.all_to_all_single(came, big)) for _ in range(9))
    half = big[:BIG]
    sent = median(timed(lambda: one_way(team.rank, half)) for _ in range(9))
    found = {"latency_seconds": brief, "bytes_per_second": 4 * BIG / long}
    found["one_way_bytes_per_second"] = 4 * BIG / sent
    if team.rank == 1:
        print(json.dumps(found), flush=True)
    team.barrier()
    team.leave()


def one_way(rank: int, x: torch.Tensor) -> None:
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)


def timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def two_hosts(rate: int) -> Iterator[None]:
    """Two namespaces, each end of the pair limited to ``rate`` Mbit/s; gone afterwards."""
    try:
        for space in SPACES:
            command("ip", "netns", "add", space)
        pair = ["ip", "link", "add", INTERFACE, "netns", SPACES[0], "type", "veth"]
        command(*pair, "peer", "name", INTERFACE, "netns", SPACES[1])
        for number, space in enumerate(SPACES, 1):
            command("ip", "-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", INTERFACE)
            for device in (INTERFACE, "lo"):
                command("ip", "-n", space, "link", "set", device, "up")
            bucket = ["rate", f"{rate}mbit", "burst", BURST, "limit", "16mb"]
            tc = ["tc", "-n", space, "qdisc", "add", "dev", INTERFACE, "root", "tbf"]
            command(*tc, *bucket)
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False)


def over_link(script: list[str]) -> Row:
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", ADDRESS]
    try:
        return last_json(
            [
                started(["ip", "netns", "exec", space, sys.executable, "-m",
                         "torch.distributed.run", *meeting, "--node-rank", str(rank), *script])
                for rank, space in enumerate(SPACES)
            ]
        )  # fmt: skip
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


def torchrun(arguments: list[str]) -> Row:
    return last_json([started([sys.executable, "-m", "torch.distributed.run", *arguments])])


def started(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def last_json(processes: list[subprocess.Popen[str]]) -> Row:
    """What one of the processes printed, when all have ended well."""
    texts = [process.communicate()[0] for process in processes]
    assert not any(process.returncode for process in processes), "a process failed"
    lines = [line for text in texts for line in text.splitlines() if line.startswith("{")]
    found: Row = json.loads(lines[-1])
    return found


def command(*arguments: str) -> None:
    subprocess.run(arguments, check=True)


if __name__ == "__main__":
    main()
