"""Mini-batches for large graphs: some nodes of a graph with the edges among them.

A batch is a set S of nodes with the lists N_v ∩ S, and a loss on some of S, its *seeds*. Every
layer attends, and normalises, over the neighbours in the batch. This approximates a step on the
whole graph; how well depends on how S is drawn.

- :class:`ClusterSampler`: S is some clusters of a partition, drawn together (as in Cluster-GCN);
  the edges between clusters that do not meet are missing from the step. The seeds are all its
  training nodes.
- :class:`NeighborSampler`: S is what is reached from some training nodes, the seeds, in L hops
  with at most so many neighbours per node, and no more nodes than a limit.

Graph and features stay in the memory of the CPU; the device has one batch. The numbers that count,
on validation and test nodes, are exact all the same: :mod:`deepgat.models.chunked`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.distributed import owners
from deepgat.errors import UserError
from deepgat.models import LayerOutputs, Network
from deepgat.models.chunked import Chunks
from deepgat.models.outputs import Until
from deepgat.nn.norms import BatchNorm
from deepgat.ops import Columns, Neighbors, dropout_masks, take_rows
from deepgat.ops.sampling import no_places, reach, sublists
from deepgat.training.inputs import GraphInputs, Trained
from deepgat.training.settings import TrainSettings


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step sees of a graph, on the CPU."""

    nodes: Tensor
    """[m] int64: S, ascending."""
    neighbors: Neighbors
    """N_v ∩ S, in the numbers 0 … m − 1."""
    seeds: Tensor
    """[k] int64: which of the m nodes the loss is over, ascending."""


class ClusterSampler:
    """``per_batch`` clusters of a graph at a time, every cluster once in an epoch.

    ``draw`` returns what the batches of one epoch begin with, from torch's random numbers, and
    ``batch`` makes one of them. No batch has more than ``most_nodes`` nodes.

    Args:
        neighbors: of the whole graph, on the CPU.
        train: [k] the training nodes.
        clusters: how many; METIS cuts few edges, where it is installed
            (:func:`deepgat.distributed.owners`).
        per_batch: how many form a batch.
    """

    def __init__(self, neighbors: Neighbors, train: Tensor, clusters: int, per_batch: int) -> None:
        self.neighbors, self.per_batch = neighbors, per_batch
        self.places = no_places(neighbors.num_nodes)
        self.trains = torch.zeros(neighbors.num_nodes, dtype=torch.bool)
        self.trains[train] = True
        owner = owners(neighbors.edge_index, neighbors.num_nodes, clusters)
        sizes = torch.bincount(owner)
        every = torch.argsort(owner, stable=True).split(sizes.tolist())
        self.clusters = [nodes for nodes in every if nodes.numel()]
        self.most_nodes = int(sizes.sort(descending=True).values[:per_batch].sum())

    def draw(self) -> list[Tensor]:
        drawn = torch.randperm(len(self.clusters)).split(self.per_batch)
        nodes = [torch.cat([self.clusters[i] for i in some.tolist()]) for some in drawn]
        return [some for some in nodes if self.trains[some].any()]  # else there is no loss

    def batch(self, start: Tensor) -> Batch:
        nodes = start.sort().values
        seeds = self.trains[nodes].nonzero().view(-1)
        return Batch(nodes, sublists(self.neighbors, nodes, self.places), seeds)


class NeighborSampler:
    """Some training nodes at a time, with drawn neighbours of drawn neighbours.

    As :class:`ClusterSampler`.

    Args:
        neighbors: of the whole graph, on the CPU.
        train: [k] the training nodes.
        per_batch: how many of them are the seeds of a batch.
        fan_outs: neighbours that a node brings along at most, hop by hop from the seeds.
        most_nodes: of one batch; the hop that would exceed it is the last, and not whole.
    """

    def __init__(
        self,
        neighbors: Neighbors,
        train: Tensor,
        per_batch: int,
        fan_outs: Sequence[int],
        most_nodes: int,
    ) -> None:
        self.neighbors, self.train, self.per_batch = neighbors, train, per_batch
        self.fan_outs, self.limit = fan_outs, most_nodes
        self.most_nodes = min(max(most_nodes, per_batch + 1), neighbors.num_nodes)
        self.places = no_places(neighbors.num_nodes)

    def draw(self) -> list[Tensor]:
        order = self.train[torch.randperm(self.train.numel())]
        if order.numel() > self.per_batch > 1 and order.numel() % self.per_batch == 1:
            # batch norm cannot train on one node: the last seed joins the batch before it
            *most, before = order[:-1].split(self.per_batch)
            return [*most, torch.cat([before, order[-1:]])]
        return list(order.split(self.per_batch))

    def batch(self, start: Tensor) -> Batch:
        seed = int(dropout_masks.new_seed(torch.device("cpu")))
        nodes = reach(self.neighbors, start, self.fan_outs, self.limit, seed, self.places)
        seeds = torch.searchsorted(nodes, start.sort().values)
        return Batch(nodes, sublists(self.neighbors, nodes, self.places), seeds)


class SampledInputs:
    """Mini-batches of graphs on the CPU, each moved to the device when it is used.

    As :class:`deepgat.training.inputs.Inputs`: a step per batch, and validation on whole graphs.
    """

    repeated: Sequence[GraphInputs] = ()

    def __init__(
        self,
        model: Network,
        graphs: Sequence[GraphInputs],
        settings: TrainSettings,
        device: torch.device,
    ) -> None:
        self.device = device
        normed = any(isinstance(module, BatchNorm) for module in model.modules())
        if settings.batches == "neighbours" and settings.per_batch == 1 and normed:
            raise UserError(
                "batch_size is 1, and a batch norm cannot train on a single node: set 2 or more, "
                "or choose another normalisation"
            )
        self.samplers: list[tuple[GraphInputs, ClusterSampler | NeighborSampler]] = []
        for graph in graphs:
            lists, train, size = graph.neighbors, graph.nodes["train"], settings.per_batch
            if not train.numel():
                continue
            if settings.batches == "clusters":
                clusters = ClusterSampler(lists, train, settings.clusters, size)
                self.samplers.append((graph, clusters))
            else:
                fan_outs = settings.fan_outs(model.num_layers)
                drawn = NeighborSampler(lists, train, size, fan_outs, settings.most_nodes)
                self.samplers.append((graph, drawn))
        self.validation: Sequence[GraphInputs] = [
            in_chunks(graph, settings.most_nodes, device) for graph in graphs if graph.counts["val"]
        ]
        self.most_nodes = max(sampler.most_nodes for _, sampler in self.samplers)

    def training(self) -> Iterator[GraphInputs]:
        starts = [(pair, start) for pair in self.samplers for start in pair[1].draw()]
        for index in torch.randperm(len(starts)).tolist():
            (graph, sampler), start = starts[index]
            yield _of_batch(graph, sampler.batch(start), self.device)


def _of_batch(graph: GraphInputs, batch: Batch, device: torch.device) -> GraphInputs:
    assert not isinstance(graph.x, Columns)
    z = graph.label_features
    return GraphInputs(
        x=take_rows(graph.x, batch.nodes).to(device),
        neighbors=batch.neighbors.to(device),
        label_features=None if z is None else z[batch.nodes].to(device),
        y=graph.y[batch.nodes].to(device),
        nodes={"train": batch.seeds.to(device)},
        counts={"train": batch.seeds.numel()},
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkedInputs(GraphInputs):
    """A graph on the CPU that is run layer by layer; labels and masks are on the device."""

    chunks: Chunks

    def run(
        self,
        model: Trained,
        with_attention: bool = False,
        segment: int = 0,
        until: Until | None = None,
    ) -> LayerOutputs:
        """The output alone: no layer's state is kept."""
        assert isinstance(model, Network)
        labels = self.y if model.needs_labels else None
        logits = self.chunks.logits(model, self.label_features, labels).to(self.y.device)
        return LayerOutputs(logits, {model.num_layers: logits}, [])


def in_chunks(graph: GraphInputs, most_nodes: int, device: torch.device) -> ChunkedInputs:
    """A graph on the CPU, to be run so many nodes at a time by a model on the device."""
    assert not isinstance(graph.x, Columns)
    return ChunkedInputs(
        x=graph.x,
        neighbors=graph.neighbors,
        label_features=graph.label_features,
        y=graph.y.to(device),
        nodes={name: nodes.to(device) for name, nodes in graph.nodes.items()},
        counts=graph.counts,
        chunks=Chunks(graph.x, graph.neighbors, most_nodes),
    )
