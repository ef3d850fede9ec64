"""What a stack predicts for all nodes of a large graph, layer by layer and some nodes at a time.

The nodes are cut into chunks. Layer l of every chunk is computed before layer l + 1 of any, so that
it reads h^(l-1) of all nodes: the result is that of the whole graph at once, up to rounding. What
is held does not grow with L: the states of two layers, and what one layer's chunks tell each other
(values and scores of every node). It lies in the memory of the CPU; the device has one chunk.

A chunk is a part of the graph (:class:`deepgat.ops.Part`) whose neighbours' rows are other
chunks' business, as in a team of processes. Here they run in turns: where a chunk needs what the
others have not computed yet, it leaves what it has on the board and is run again from the start of
the layer when all have done so.
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
from deepgat.ops.sampling import stretch


class _Wait(BaseException):
    """No error: the chunk's turn is over, the others have to come as far first."""


@dataclass(eq=False)
class _Board:
    """What the chunks told each other since the layer began, question by question."""

    answered: list[list[Tensor]] = field(default_factory=list)
    """For every question that all have answered: the rows of all nodes, or the sums."""
    open: list[list[Tensor]] = field(default_factory=list)
    """The answers of the chunks so far to the question after those."""
    adds_up: bool = False
    asked: int = 0
    """Questions that the chunk at hand has asked in this turn."""

    def ask(self, mine: Sequence[Tensor], adds_up: bool) -> list[Tensor]:
        """What all chunks together have, on the CPU; a chunk whose turn is over leaves its own."""
        self.asked += 1
        if self.asked <= len(self.answered):
            return self.answered[self.asked - 1]
        self.adds_up = adds_up
        self.open.append([x.cpu() for x in mine])
        raise _Wait

    def end_round(self) -> None:
        """All chunks have answered: the rows of all [n, …], or the sum in the chunks' order."""
        together = list(zip(*self.open, strict=True))
        if self.adds_up:
            found = [torch.stack(parts).sum(0) for parts in together]
        else:
            found = [torch.cat(parts) for parts in together]
        self.answered.append(found)
        self.open = []


@dataclass(frozen=True, eq=False)
class _ChunkPart(Part):
    """A chunk as the operators see it."""

    own: int
    ids: Tensor
    num_nodes: int
    board: _Board
    borrows = True

    def with_halo(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        halo = self.ids[self.own :].cpu()
        found = self.board.ask(tensors, adds_up=False) if tensors else []
        return [
            torch.cat([x, rows.index_select(0, halo).to(x.device)])
            for x, rows in zip(tensors, found, strict=True)
        ]

    def total(self, x: Tensor) -> Tensor:
        (found,) = self.board.ask([x], adds_up=True)
        return found.to(x.device)

    def gathered(self, x: Tensor) -> Tensor | None:
        return x

    def to(self, device: object) -> Part:
        return replace(self, ids=self.ids.to(device))  # type: ignore[call-overload]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some nodes in a row with their lists and features, on the CPU."""

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
        self.board = _Board()
        self.chunks: list[Chunk] = []
        if self.num_nodes <= most_nodes:  # the whole graph: there is no one to ask
            self.chunks.append(Chunk(slice(None), neighbors, x))
            return
        for begin in range(0, self.num_nodes, most_nodes):
            end = min(begin + most_nodes, self.num_nodes)
            lists, ids = stretch(neighbors, begin, end)
            part = _ChunkPart(end - begin, ids, self.num_nodes, self.board)
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
        """The rows of all chunks, on the CPU: in as many rounds as they have questions, and one."""
        board = self.board
        found: Tensor | None = None
        board.answered = []
        try:
            while True:
                for chunk in self.chunks:
                    board.asked = 0
                    try:
                        with use_part(chunk.part):
                            out = step(chunk)
                    except _Wait:
                        continue
                    assert isinstance(out, Tensor)
                    if found is None:
                        shape = (self.num_nodes, *out.shape[1:])
                        found = torch.empty(shape, dtype=out.dtype)
                    found[chunk.rows] = out.cpu()
                if found is not None:
                    return found
                board.end_round()
        finally:
            board.answered, board.open = [], []
