"""Exact inference on a graph whose activations do not fit into memory, in chunks of nodes.

Layer l of every chunk is computed before layer l + 1 of any, since layer l + 1 reads h^l of all
nodes. The result is that of the whole graph at once, up to rounding. Memory does not grow with L:
the CPU holds the states of two layers and what the chunks of a layer exchange (values and scores
of every node); the device holds one chunk.

A chunk is a part of the graph (:class:`deepgat.ops.Part`) and the other chunks own the rows of its
halo, as in a team of processes. Here the chunks run one after the other. A chunk that needs rows
which others have not computed yet stores its own and stops; once all chunks have come as far, each
runs again from the start of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from deepgat.models.network import Network
from deepgat.models.outputs import Context
from deepgat.ops import (
    Features,
    Neighbors,
    Part,
    PartNeighbors,
    SparseMatrix,
    take_rows,
    use_part,
)
from deepgat.ops.sampling import consecutive_nodes


class _WaitForOthers(BaseException):
    """Stops a chunk until the other chunks have come as far; not an error."""


@dataclass(eq=False)
class _Exchange:
    """The tensors that the chunks of one layer exchange.

    All chunks exchange the same sequence of tensors, so the k-th of one belongs to the k-th of all.
    """

    complete: list[list[Tensor]] = field(default_factory=list)
    """For every exchange that all chunks took part in: the rows of all nodes, or the sums."""
    pending: list[list[Tensor]] = field(default_factory=list)
    """What the chunks have given so far to the next one."""
    summed: bool = False
    """Whether the next one adds the chunks' tensors up; else it joins their rows."""
    reached: int = 0
    """Exchanges of the current chunk, since it began to run."""

    def together(self, mine: Sequence[Tensor], summed: bool) -> list[Tensor]:
        """The rows or sums of all chunks, on the CPU; stops the chunk if they are incomplete."""
        self.reached += 1
        if self.reached <= len(self.complete):
            return self.complete[self.reached - 1]
        self.summed = summed
        self.pending.append([x.cpu() for x in mine])
        raise _WaitForOthers

    def finish(self) -> None:
        """Complete the pending exchange, in the order of the chunks."""
        by_tensor = list(zip(*self.pending, strict=True))
        if self.summed:
            found = [torch.stack(parts).sum(0) for parts in by_tensor]
        else:
            found = [torch.cat(parts) for parts in by_tensor]
        self.complete.append(found)
        self.pending = []


@dataclass(frozen=True, eq=False)
class _ChunkPart(Part):
    """A chunk as the operators see it."""

    own: int
    ids: Tensor
    num_nodes: int
    exchange: _Exchange
    borrows = True

    def with_halo(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        halo = self.ids[self.own :].cpu()
        found = self.exchange.together(tensors, summed=False) if tensors else []
        return [
            torch.cat([x, rows.index_select(0, halo).to(x.device)])
            for x, rows in zip(tensors, found, strict=True)
        ]

    def total(self, x: Tensor) -> Tensor:
        (found,) = self.exchange.together([x], summed=True)
        return found.to(x.device)

    def gathered(self, x: Tensor) -> Tensor | None:
        return x

    def to(self, device: object) -> Part:
        return replace(self, ids=self.ids.to(device))  # type: ignore[call-overload]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive nodes with their lists and features, on the CPU."""

    rows: slice
    neighbors: Neighbors
    x: Tensor | SparseMatrix

    @property
    def part(self) -> Part | None:
        return self.neighbors.part if isinstance(self.neighbors, PartNeighbors) else None


class Chunks:
    """A graph cut into chunks, once, for any number of predictions.

    Args:
        x: [n, d], dense or sparse, on the CPU.
        neighbors: on the CPU.
        most_nodes: of one chunk.
    """

    def __init__(
        self,
        x: Tensor | SparseMatrix,
        neighbors: Neighbors,
        most_nodes: int,
    ) -> None:
        self.num_nodes = neighbors.num_nodes
        self.exchange = _Exchange()
        self.chunks: list[Chunk] = []
        if self.num_nodes <= most_nodes:  # the whole graph in one chunk
            self.chunks.append(Chunk(slice(None), neighbors, x))
            return
        for begin in range(0, self.num_nodes, most_nodes):
            end = min(begin + most_nodes, self.num_nodes)
            lists, ids = consecutive_nodes(neighbors, begin, end)
            part = _ChunkPart(end - begin, ids, self.num_nodes, self.exchange)
            rows = x[begin:end] if isinstance(x, Tensor) else take_rows(x, ids[: end - begin])
            self.chunks.append(Chunk(slice(begin, end), PartNeighbors.of(lists, part), rows))

    @torch.no_grad()
    def logits(
        self,
        model: Network,
        label_features: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """What ``model(…)`` gives in evaluation: [n, C], on the CPU.

        Args:
            model: in evaluation mode, on any device.
            label_features, labels: as in :meth:`Network.run`, of all nodes.
        """
        assert not model.training  # a chunk may run several times, and dropout would differ
        device = next(model.parameters()).device
        initial: Tensor | None = None

        def rows(of: Tensor | None, chunk: Chunk) -> Tensor | None:
            return None if of is None else of[chunk.rows].to(device)

        def first(chunk: Chunk) -> Features:
            return model.encode(model.features(chunk.x.to(device)))

        def layer(number: int, before: Tensor | None) -> Tensor:
            def of(chunk: Chunk) -> Tensor:
                context = Context(
                    chunk.neighbors.to(device),
                    rows(label_features, chunk),
                    rows(labels, chunk),
                    rows(initial, chunk),
                )
                h = first(chunk) if before is None else before[chunk.rows].to(device)
                return model.run_layers(range(number, number + 1), h, context).states[-1]

            return self._each(of)

        state: Tensor | None = None
        if model.has_encoder:
            state = initial = self._each(first)
        hidden: list[Tensor] = []
        for number in range(1, model.num_layers + 1):
            state = layer(number, state)
            hidden = [*hidden, state] if model.reads_every_layer else [state]

        def read(chunk: Chunk) -> Tensor:
            logits: Tensor = model.readout(
                [h[chunk.rows].to(device) for h in hidden], rows(initial, chunk)
            )
            return logits

        return self._each(read)

    def _each(self, step: Callable[[Chunk], Features]) -> Tensor:
        """``step`` of every chunk: the rows of all nodes, on the CPU.

        A step with k exchanges runs k + 1 times.
        """
        exchange = self.exchange
        found: Tensor | None = None
        exchange.complete = []
        try:
            while True:
                for chunk in self.chunks:
                    exchange.reached = 0
                    try:
                        with use_part(chunk.part):
                            out = step(chunk)
                    except _WaitForOthers:
                        continue
                    assert isinstance(out, Tensor)
                    if found is None:
                        shape = (self.num_nodes, *out.shape[1:])
                        found = torch.empty(shape, dtype=out.dtype)
                    found[chunk.rows] = out.cpu()
                if found is not None:
                    return found
                exchange.finish()
        finally:
            exchange.complete, exchange.pending = [], []
