"""Load on ``deepgat serve``: requests per second and latencies, or a soak, over loopback.

    deepgat train digits --model deepgat --layers 2 --keep-graph --out model/
    python benchmarks/serve_load.py model/                    # a table, about two minutes
    python benchmarks/serve_load.py model/ --soak 600         # memory over ten minutes

The service is a process of its own. The clients are coroutines of this process, each with one
connection that stays open, and each sends its next request when it has the answer to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from deepgat import Model

CLIENTS = (1, 8, 64)
MOST_REQUESTS = 50_000
"""In one cell of the table, whatever the time."""

Request = tuple[str, bytes]


@dataclass
class Outcome:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    elapsed: float = 0.0
    cpu: float = 0.0
    """Seconds that the service computed."""

    def row(self) -> str:
        ms = 1000 * np.array(self.seconds)
        p50, p99 = np.percentile(ms, [50, 99])
        rate = len(ms) / self.elapsed
        cpu = 1000 * self.cpu / len(ms)
        return f"{rate:,.0f} | {p50:.1f} | {p99:.1f} | {cpu:.2f} | {len(ms):,} | {self.refused}"


def requests_of(folder: Path, seed: int = 0) -> dict[str, Callable[[], Request]]:
    """Random requests of every kind."""
    model, draw = Model.load(folder), random.Random(seed)
    graph = model.kept
    if graph is None:
        sys.exit(f"{folder} has no graph: train the model with --keep-graph")
    n, x = graph.num_nodes, graph.features(np.arange(graph.num_nodes)).to_dense()

    def node() -> str:
        return graph.name(draw.randrange(n))

    def predict() -> Request:
        return "/v1/predict", json.dumps({"nodes": [node()]}).encode()

    def predict_new() -> Request:
        features = x[draw.randrange(n)].tolist()
        row = {"id": "new", "x": features}
        edges = [{"source": "new", "target": node()} for _ in range(5)]
        return "/v1/predict-new", json.dumps({"nodes": [row], "edges": edges}).encode()

    def explain() -> Request:
        return "/v1/explain", json.dumps({"node": node()}).encode()

    return {"predict": predict, "predict-new": predict_new, "explain": explain}


@contextmanager
def service(folder: Path, *options: str) -> Iterator[tuple[int, int]]:
    """(port, process id) of a service that is ready; its log goes nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "deepgat", "serve", str(folder), "--port", str(port)]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:
        asyncio.run(_until_ready(port))
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        print(f"stopped with exit status {code}", file=sys.stderr)


async def _until_ready(port: int) -> None:
    for _ in range(600):
        try:
            connection = await Connection.open(port)
            status, _ = await connection.send("/ready", b"", "GET")
            if status == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.2)
    sys.exit("the service did not become ready within two minutes")


class Connection:
    """As much of HTTP/1.1 as these clients need, so that they take little of the machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def open(port: int) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        lines = answer.decode("latin-1").lower().split("\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith("content-length:"))
        return int(lines[0].split()[1]), await self.reader.readexactly(length)


async def load(
    port: int, make: Callable[[], Request], clients: int, seconds: float, pause: float = 0.0
) -> Outcome:
    """So many clients for so many seconds, each with a pause after every answer."""
    outcome, begin = Outcome(), time.perf_counter()
    end = begin + seconds

    async def client() -> None:
        connection = await Connection.open(port)
        while time.perf_counter() < end and len(outcome.seconds) < MOST_REQUESTS:
            request, start = make(), time.perf_counter()
            status, _ = await connection.send(*request)
            outcome.seconds.append(time.perf_counter() - start)
            outcome.refused += status != 200
            await asyncio.sleep(pause)
        connection.writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    outcome.elapsed = time.perf_counter() - begin
    return outcome


def resident(process: int) -> float:
    """MiB of memory that a process has."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_seconds(process: int) -> float:
    """Seconds that a process has computed, in all of its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(folder: Path, seconds: float, options: list[str]) -> None:
    kinds = requests_of(folder)
    print("| request | clients | requests/s | p50 ms | p99 ms | CPU ms | answered | refused |")
    print("|---|---|---|---|---|---|---|---|")
    with service(folder, *options) as (port, process):
        for name, make in kinds.items():
            asyncio.run(load(port, make, 2, 1.0))  # the first request of a kind is slower
            for clients in CLIENTS:
                before = cpu_seconds(process)
                outcome = asyncio.run(load(port, make, clients, seconds))
                outcome.cpu = cpu_seconds(process) - before
                print(f"| {name} | {clients} | {outcome.row()} |", flush=True)
    cores, busy = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"{cores} cores; load average at the end {busy:.1f}")


def soak(folder: Path, seconds: float, options: list[str]) -> None:
    """A mixture of all requests by 8 clients that pause; the service's memory after each tenth."""
    kinds = list(requests_of(folder).values())
    draw = random.Random(1)

    def some(port: int, seconds: float) -> Outcome:
        return asyncio.run(load(port, lambda: draw.choice(kinds)(), 8, seconds, pause=0.1))

    with service(folder, *options) as (port, process):
        some(port, min(20.0, seconds / 10))
        first, answered, refused = resident(process), 0, 0
        print(f"after the warm-up: {first:.0f} MiB", flush=True)
        for part in range(1, 11):
            outcome = some(port, seconds / 10)
            answered += len(outcome.seconds)
            refused += outcome.refused
            print(
                f"{part * seconds / 10:.0f} s: {resident(process):.0f} MiB, {answered:,} answered, "
                f"{refused} refused",
                flush=True,
            )
        print(f"grown by {resident(process) - first:.1f} MiB in {seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a model folder with its graph")
    parser.add_argument("--seconds", type=float, default=8.0, help="for a cell of the table")
    parser.add_argument("--soak", type=float, help="instead of the table, for so many seconds")
    known, options = parser.parse_known_args()
    if known.soak:
        soak(known.model, known.soak, options)
    else:
        table(known.model, known.seconds, options)


if __name__ == "__main__":
    main()
