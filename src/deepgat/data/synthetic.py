"""Graphs that need no files: digits, a contextual stochastic block model, labels k hops away."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from deepgat.data.splits import Split, draw_masks
from deepgat.errors import UserError

STORED_SPLITS = 10


def digits_graph(neighbors: int = 10) -> Data:
    """The 1,797 handwritten digits of scikit-learn as a graph of similar images.

    ``x`` [1797, 64] are the pixels divided by 16, ``y`` the ten digits. An edge joins u and v if
    either is among the ``neighbors`` nearest nodes of the other (Euclidean distance of x). There
    are no self-loops.
    """
    from sklearn.datasets import load_digits  # here, because importing it takes a second
    from sklearn.neighbors import kneighbors_graph
    from threadpoolctl import threadpool_limits

    pixels, digits = load_digits(return_X_y=True)
    _require(1 <= neighbors < len(pixels), "neighbors", neighbors, f"1 to {len(pixels) - 1}")
    x = pixels / 16
    with threadpool_limits(1):  # which of several equally near nodes are taken depends on threads
        nearest = kneighbors_graph(x, neighbors, include_self=False).tocoo()
    return Data(
        x=torch.from_numpy(x).float(),
        edge_index=_both_ways(nearest.row, nearest.col, len(x)),
        y=torch.from_numpy(digits).long(),
    )


def csbm_graph(
    num_nodes: int = 2000,
    classes: int = 5,
    features: int = 32,
    *,
    degree: float = 8.0,
    homophily: float = 0.7,
    separation: float = 1.5,
    hubs: int = 0,
    hub_degree: int = 100,
    seed: int = 0,
) -> Data:
    """A contextual stochastic block model with planted hubs.

    Labels are balanced and in random order. x_v = μ_{y_v} + ε_v with ε_v ~ N(0, I) and μ_c of
    length ``separation`` in a random direction. num_nodes·degree/2 edges start at random nodes,
    and ``hub_degree`` more at each of the nodes 0..hubs−1. The end of an edge is a random node of
    the same class with probability ``homophily``, else of another class. Self-loops and repeated
    edges are removed, so degrees are slightly lower than requested. The graph is undirected.

    Args:
        num_nodes: n, at least ``classes``.
        classes: C.
        features: d, the width of ``x``.
        degree: mean number of neighbours before the hubs are planted.
        homophily: the expected share of edges inside a class, 0 to 1.
        separation: distance of the class means from the origin, in standard deviations.
        hubs: number of nodes with ``hub_degree`` more edges.
        hub_degree: at most n − 1.
        seed: the same arguments and seed give the same graph.
    """
    _require(classes >= 1, "classes", classes, "1 or more")
    _require(num_nodes >= classes, "num_nodes", num_nodes, f"at least the {classes} classes")
    _require(features >= 1, "features", features, "1 or more")
    _require(0 <= degree < num_nodes, "degree", degree, f"0 to {num_nodes - 1}")
    _require(0 <= homophily <= 1, "homophily", homophily, "0 to 1")
    _require(0 <= hubs <= num_nodes, "hubs", hubs, f"0 to {num_nodes}")
    most = num_nodes - 1
    _require(not hubs or 0 <= hub_degree <= most, "hub_degree", hub_degree, f"0 to {most}")
    random = np.random.default_rng(seed)
    y = random.permutation(np.arange(num_nodes) % classes)

    means = random.standard_normal((classes, features))
    means *= separation / np.linalg.norm(means, axis=1, keepdims=True)
    x = means[y] + random.standard_normal((num_nodes, features))

    ordinary = random.integers(num_nodes, size=round(num_nodes * degree / 2))
    starts = np.concatenate([ordinary, np.repeat(np.arange(hubs), hub_degree)])
    ends = _draw_ends(random, y, starts, homophily)
    return Data(
        x=torch.from_numpy(x).float(),
        edge_index=_both_ways(starts, ends, num_nodes),
        y=torch.from_numpy(y).long(),
    )


def hops_graph(
    hops: int = 8,
    parts: int = 240,
    classes: int = 4,
    features: int = 32,
    *,
    width: int = 4,
    seed: int = 0,
) -> Data:
    """A graph in which a label depends on one node ``hops`` links away, and on nothing nearer.

    It has ``parts`` components of the same shape, 1 – width – … – width – 1 nodes in hops + 1
    levels. Every node of a level reads from all nodes of the next: edges run from there to it and
    are not made undirected. Only the nodes 0 … parts−1, the first levels, have labels. The feature
    of a component's last node is its class's random code; all other nodes share one code. So the
    nodes with labels look alike, with all that is nearer than ``hops``: fewer layers than that are
    left with guessing, 1/classes of the nodes. The rest is easy: averaging over a node and those it
    reads from keeps width/(width + 1) of what comes from afar, at every hop; in half as many layers
    again nearly all of it arrives.

    The masks are ten splits [n, 10] of the components, 50/25/25, stratified by class.

    Args:
        hops: k, the distance.
        parts: number of components, and of labels; at least ``classes``.
        classes: C, balanced.
        features: d, the width of ``x``.
        width: nodes in each level between the first and the last.
        seed: the same arguments and seed give the same graph.
    """
    _require(hops >= 1, "hops", hops, "1 or more")
    _require(classes >= 1, "classes", classes, "1 or more")
    _require(parts >= classes, "parts", parts, f"at least the {classes} classes")
    _require(features >= 1, "features", features, "1 or more")
    _require(width >= 1, "width", width, "1 or more")
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(parts) % classes)
    codes = random.standard_normal((classes + 1, features))

    # Nodes are numbered level by level; each level is an array [parts, its width].
    ends = parts * np.cumsum([1, *[width] * (hops - 1), 1])
    levels = [level.reshape(parts, -1) for level in np.split(np.arange(ends[-1]), ends[:-1])]
    pairs = [
        np.stack(np.broadcast_arrays(far[:, :, None], near[:, None, :])).reshape(2, -1)
        for near, far in pairwise(levels)
    ]
    code, y = np.full(ends[-1], classes), np.full(ends[-1], -1)
    code[-parts:] = y[:parts] = labels
    graph = Data(
        x=torch.from_numpy(codes[code]).float(),
        edge_index=coalesce(torch.from_numpy(np.concatenate(pairs, axis=1))),
        y=torch.from_numpy(y),
    )
    drawn = [draw_masks(Split("fractions", k, 0.5, 0.25), graph.y) for k in range(STORED_SPLITS)]
    graph.train_mask, graph.val_mask, graph.test_mask = (
        torch.stack(masks, dim=1) for masks in zip(*drawn, strict=True)
    )
    return graph


def _draw_ends(
    random: np.random.Generator, y: np.ndarray, starts: np.ndarray, homophily: float
) -> np.ndarray:
    """One random end per start: in the same class with probability ``homophily``."""
    by_class = np.argsort(y, kind="stable")
    count = np.bincount(y)
    begin = np.cumsum(count) - count
    own, first = count[y[starts]], begin[y[starts]]
    inside = (random.random(len(starts)) < homophily) | (own == len(y))
    place = np.floor(random.random(len(starts)) * np.where(inside, own, len(y) - own)).astype(int)
    # Places outside the class count all nodes in class order, skipping the class itself.
    place = np.where(inside, place + first, place + np.where(place >= first, own, 0))
    return by_class[place]


def _both_ways(a: np.ndarray, b: np.ndarray, num_nodes: int) -> Tensor:
    """Edge index [2, e] with every pair once in each direction, no self-loops, sorted."""
    pairs, _ = remove_self_loops(torch.from_numpy(np.stack([a, b]).astype(np.int64)))
    return to_undirected(pairs, num_nodes=num_nodes)


def _require(fine: bool, name: str, value: float, wanted: str) -> None:
    if not fine:
        raise UserError(f"{name} is {value}, but must be {wanted}")
