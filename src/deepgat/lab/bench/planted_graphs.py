"""Large random graphs with planted classes, hubs and weak features, made on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.errors import UserError
from deepgat.ops import Neighbors

CLASSES, FEATURES = 16, 32
HOMOPHILY, SEPARATION = 0.6, 1.5
PAIRS_PER_NODE = 10
LEAST_PAIRS, MOST_PAIRS = 1_000, 10**9
"""Edges that can be drawn: places in the lists of both directions are 32-bit numbers."""
MOST_TRAINED, MOST_HELD_OUT = 20_000, 50_000


@dataclass(frozen=True, eq=False)
class PlantedGraph:
    """n nodes of C classes on one device.

    Training nodes are labelled. The held-out nodes serve to measure accuracy.
    """

    x: Tensor
    """[n, d] float32: μ_y + ε."""
    y: Tensor
    """[n] int64."""
    means: Tensor
    """[C, d]: μ."""
    neighbors: Neighbors
    train: Tensor
    """[k] int64: the nodes to train on."""
    held_out: Tensor
    """[m] int64: other nodes."""
    homophily: float

    @property
    def num_classes(self) -> int:
        return self.means.size(0)

    def to(self, device: torch.device) -> PlantedGraph:
        names = ("x", "y", "means", "neighbors", "train", "held_out")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def planted_graph(
    pairs: int,
    *,
    classes: int = CLASSES,
    homophily: float = HOMOPHILY,
    seed: int = 0,
    device: torch.device | None = None,
) -> PlantedGraph:
    r"""A degree-corrected stochastic block model with features.

    Nodes have ranks 0 … n − 1, n ≈ pairs / 10, and the class rank mod C. Both ends of an edge have
    rank ⌊n u²⌋, u uniform, so that the expected degree of rank r falls as :math:`r^{-1/2}`: the
    degrees have a power law of exponent 3. The second end then moves by less than C ranks, to the
    class of the first with probability ``homophily``, else to one of the others. Ranks are finally
    permuted. Loops and repeated edges are dropped. x_v = μ_{y_v} + ε_v with ε_v ~ N(0, I) and μ_c
    of length :data:`SEPARATION` in a random direction.

    Half of the nodes, 20,000 at most, are labelled for training; a quarter, 50,000 at most, are
    held out.

    Args:
        pairs: undirected edges that are drawn.
        classes: C, 2 or more.
        homophily: share of the drawn edges within a class.
        seed: the same arguments, device type and seed give the same graph.
        device: where the graph is made, and stays.
    """
    if not LEAST_PAIRS <= pairs <= MOST_PAIRS or not 2 <= classes <= pairs // PAIRS_PER_NODE:
        raise UserError(
            f"pairs is {pairs} and classes {classes}: expected {LEAST_PAIRS} to {MOST_PAIRS} "
            f"edges, and 2 classes or more, but at most one for {PAIRS_PER_NODE} edges"
        )
    device = device or torch.device("cpu")
    random = torch.Generator(device=device).manual_seed(seed)
    n = pairs // PAIRS_PER_NODE // classes * classes
    place = torch.randperm(n, generator=random, device=device)
    y = torch.empty_like(place)
    y[place] = torch.arange(n, device=device) % classes
    source, target = _ends(n, pairs, classes, homophily, random)
    edge_index = _both_ways(place, source, target)
    del source, target, place
    neighbors = Neighbors.from_edge_index(edge_index, n)
    del edge_index
    means = torch.randn(classes, FEATURES, generator=random, device=device)
    means = SEPARATION * F.normalize(means)
    x = torch.randn(n, FEATURES, generator=random, device=device).add_(means[y])
    drawn = torch.randperm(n, generator=random, device=device)
    train = min(n // 2, MOST_TRAINED)
    train_nodes, others = drawn[:train], drawn[train : train + min(n // 4, MOST_HELD_OUT)]
    return PlantedGraph(
        x, y, means, neighbors, train_nodes.sort().values, others.sort().values, homophily
    )


def _ends(
    n: int, pairs: int, classes: int, homophily: float, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """[pairs] each: ranks of both ends of every edge; the class of a rank is rank mod C."""
    device = random.device

    def ranks() -> Tensor:
        # single precision has too few numbers between 0 and 1 for more than some million ranks
        draw = torch.rand(pairs, generator=random, device=device, dtype=torch.float64)
        return draw.square_().mul_(n).long().clamp_(max=n - 1)

    source, target = ranks(), ranks()
    shift = torch.randint(1, classes, (pairs,), generator=random, device=device)
    shift[torch.rand(pairs, generator=random, device=device) < homophily] = 0
    target -= target % classes
    target += (source + shift) % classes
    return source, target


def _both_ways(place: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """[2, 2·pairs]: the edges between the nodes of these ranks, in both directions."""
    pairs = source.numel()
    edge_index = place.new_empty(2, 2 * pairs)
    edge_index[0, :pairs] = edge_index[1, pairs:] = place[source]
    edge_index[1, :pairs] = edge_index[0, pairs:] = place[target]
    return edge_index


@dataclass(frozen=True)
class Bounds:
    """Accuracies on the held-out nodes that need no training, since the generator is known."""

    reachable: float
    """Of Bayes' rule for a node whose features, and all of whose neighbours' true classes, are
    known. A classifier that has to infer those classes cannot be expected to do better."""
    features_alone: float
    """Of Bayes' rule for a node whose features alone are known."""


def bounds(graph: PlantedGraph) -> Bounds:
    r"""Bayes-optimal accuracies, from the parameters that the graph was drawn with.

    The class of a neighbour is c with probability h for a node of class c, else (1 − h)/(C − 1),
    whatever the degrees, and the classes are equally frequent. So the posterior of class c is

    .. math::
        \log p(c) = n_c \log \frac{h (C - 1)}{1 - h} + \langle x, \mu_c \rangle
        - \tfrac{1}{2} |\mu_c|^2 + \text{const},

    n_c being the number of neighbours of class c.
    """
    nodes, classes, h = graph.held_out, graph.num_classes, graph.homophily
    lists = graph.neighbors
    begin, degree = lists.ptr[nodes], lists.degree[nodes]
    row = torch.repeat_interleave(torch.arange(nodes.numel(), device=nodes.device), degree)
    edge = torch.arange(row.numel(), device=nodes.device)
    edge += (begin - (degree.cumsum(0) - degree))[row]
    source = lists.source[edge].long()
    others = source != nodes[row]
    cell = row[others] * classes + graph.y[source[others]]
    count = torch.bincount(cell, minlength=nodes.numel() * classes).view(-1, classes)
    from_features = graph.x[nodes] @ graph.means.t() - graph.means.square().sum(1) / 2
    score = count * math.log(h * (classes - 1) / (1 - h)) + from_features
    y = graph.y[nodes]
    return Bounds(
        reachable=(score.argmax(1) == y).double().mean().item(),
        features_alone=(from_features.argmax(1) == y).double().mean().item(),
    )
