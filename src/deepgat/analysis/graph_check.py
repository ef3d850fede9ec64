"""Describes your graph, finds likely mistakes in it, and suggests a model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components

from deepgat.data import OwnGraph, undirected_matrix
from deepgat.data.tables.text import MISSING

LISTED_HUBS = 5
MOST_COLUMNS = 3000
"""Maximum number of feature columns to check individually."""
DETERMINED = 0.99
"""A column that predicts this share of the labels gives them away."""
COMMON = 0.95
RARE_CLASS = 5
SPLIT_CLASS = 3
"""Nodes of a class that a random split needs: one for each of its parts."""
UNEVEN, MAJORITY = 10, 0.7
"""Classes are uneven where the largest has so many times the nodes of the smallest, or holds such a
share of all labelled nodes."""


def inspect_graph(graph: OwnGraph, path: str = "my-graph/") -> dict[str, Any]:
    """What is in a graph, in plain values; ``path`` is its path in the suggested command.

    ``edges`` counts undirected pairs u ≠ v, ``feature_columns`` the columns per kind (numbers,
    categories, words, structure), ``hubs`` are the nodes with the highest degrees, and
    ``largest_component`` is a share of the nodes. ``problems`` and ``notes`` are sentences;
    ``advice`` has a command and why, and in ``uneven`` what to do about uneven classes ("" where
    they are not).
    """
    index, n = graph.edges.index, len(graph.ids)
    matrix = undirected_matrix(index, n)
    degree = np.diff(matrix.indptr)
    count, member = connected_components(matrix, directed=False)
    plain, adjusted = homophily(index, graph.y.numpy())
    top = np.argsort(-degree, kind="stable")[:LISTED_HUBS]
    parts = None
    if graph.masks is not None:
        parts = dict(zip(("train", "val", "test"), graph.masks.sum(1).tolist(), strict=True))
    return {
        "title": graph.title,
        "nodes": n,
        "edges": int(degree.sum()) // 2,
        "features": int(graph.x.shape[1]),
        "feature_columns": dict(Counter(block.plan.kind for block in graph.blocks)),
        "edge_features": list(graph.edges.feature_names),
        "edge_weights": graph.edges.weight is not None,
        "classes": graph.class_sizes,
        "multi_label": graph.multi_label,
        "unlabelled": int((~graph.labelled).sum()),
        "split": parts,
        "homophily_edge": plain,
        "homophily_adjusted": adjusted,
        "mean_degree": float(degree.mean()),
        "hubs": [(graph.ids[i], int(degree[i])) for i in top.tolist()],
        "components": int(count),
        "largest_component": float(np.bincount(member).max() / n),
        "isolated": int((degree == 0).sum()),
        "duplicate_edges": graph.edges.duplicates,
        "self_loops": graph.edges.self_loops,
        "one_way_edges": graph.edges.one_way,
        "problems": list(_problems(graph, degree)),
        "advice": _advice(graph, adjusted, path),
        "notes": list(graph.notes),
    }


def homophily(edge_index: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """(plain, adjusted) homophily of the edges between labelled nodes; NaN without such edges.

    h is the share of edges within a class (with several labels, the mean Jaccard overlap; then the
    adjusted one is NaN). Adjusted for class sizes it is (h − Σ_k D_k²/(2E)²) / (1 − Σ_k D_k²/(2E)²)
    with the total degree D_k of class k: 0 for random edges, 1 if all edges are within classes.

    From edges [2, e], in one or both directions, and y [n] or [n, C].
    """
    a, b = edge_index[:, edge_index[0] != edge_index[1]]
    labelled = np.asarray(y.any(1) if y.ndim == 2 else y >= 0)
    both = labelled[a] & labelled[b]
    a, b = y[a[both]], y[b[both]]
    if not len(a):
        return math.nan, math.nan
    if y.ndim == 2:
        overlap = ((a > 0) & (b > 0)).sum(1) / np.maximum(((a > 0) | (b > 0)).sum(1), 1)
        return float(overlap.mean()), math.nan
    edge = float((a == b).mean())
    degrees = np.bincount(np.concatenate([a, b])) / (2 * len(a))
    chance = float((degrees**2).sum())
    return edge, (edge - chance) / (1 - chance) if chance < 1 else math.nan


def _problems(graph: OwnGraph, degree: np.ndarray) -> Iterator[str]:
    n = len(graph.ids)
    if not graph.x.shape[1]:
        yield "The nodes have no features: add columns, or read with structure=degree,pagerank."
    yield from _label_problems(graph)
    yield from _column_problems(graph)
    yield from _split_problems(graph)
    alone = int((degree == 0).sum())
    if not graph.edges.index.size:
        yield "There are no edges: a model sees each node by itself."
    elif alone > 0.05 * n:
        yield f"{alone:,} of {n:,} nodes have no neighbours: the graph says nothing about them."
    if degree.max(initial=0) > 0.3 * n and n > 20:
        hub = graph.ids[int(degree.argmax())]
        yield (
            f"The node {hub[:40]!r} is joined to {degree.max() / n:.0%} of all nodes: it connects "
            "them all in two hops, and may not be a real node."
        )


def _label_problems(graph: OwnGraph) -> Iterator[str]:
    sizes = graph.class_sizes
    if not sizes:
        yield "The nodes have no labels: nothing can be trained; name the column with label=…"
        return
    total = sum(sizes.values())
    for name in sizes:
        if name.strip().lower() in (*MISSING, "?", "-"):
            yield (
                f"{sizes[name]:,} nodes are labelled {name!r}, which is a class like any other: "
                "leave the cell empty where the label is not known."
            )
    if len(sizes) == 1 and not graph.multi_label:
        yield "There is only one class: nothing can be learnt."
        return
    single = [name for name, size in sizes.items() if size == 1]
    if single:
        more = f" and {len(single) - 1} more" if len(single) > 1 else ""
        yield (
            f"The class {single[0][:40]!r}{more} has one node: it cannot be both learnt and "
            "tested; merge it, or read with rare=unlabel."
        )
    small = [name for name, size in sizes.items() if 1 < size < RARE_CLASS]
    if len(small) == 1:
        yield (
            f"The class {small[0][:40]!r} has {sizes[small[0]]} nodes, fewer than {RARE_CLASS}: "
            "its score will be noise."
        )
    elif small:
        yield (
            f"{len(small)} classes have fewer than {RARE_CLASS} nodes, such as "
            f"{small[0][:40]!r}: their scores will be noise."
        )
    if not single and _too_small_to_split(graph):
        yield (
            f"A random split needs {SPLIT_CLASS} nodes of every class: read with rare=unlabel, or "
            "give a split."
        )
    name, size = max(sizes.items(), key=lambda item: item[1])
    if not graph.multi_label and size > 0.9 * total:
        yield (
            f"{size / total:.0%} of the labelled nodes are {name[:40]!r}: always predicting it "
            "scores as much, so compare micro-F1 with that."
        )


def _too_small_to_split(graph: OwnGraph) -> bool:
    """Whether training would be refused, for a class with fewer nodes than a split has parts."""
    if graph.masks is not None or graph.multi_label or graph.options.rare != "refuse":
        return False
    return min(graph.class_sizes.values(), default=SPLIT_CLASS) < SPLIT_CLASS


def _split_problems(graph: OwnGraph) -> Iterator[str]:
    if graph.masks is None:
        return
    train, val, test = graph.masks.numpy()
    for mask, part in ((train, "train"), (val, "val"), (test, "test")):
        if not mask.any():
            yield f"No node is in the part {part!r} of the split."
    if not graph.multi_label:
        y = graph.y.numpy()
        learnt = np.unique(y[train])
        unseen = np.setdiff1d(np.unique(y[(val | test) & (y >= 0)]), learnt)
        for c in unseen[:3].tolist():
            yield (
                f"The class {graph.class_names[c][:40]!r} is validated or tested but has no "
                "training node: it cannot be predicted."
            )
    if graph.x.shape[1] < 4:
        return
    rows = _row_hashes(graph.x)
    known = np.isin(rows, rows[train])
    for mask, part in ((val, "validation"), (test, "test")):
        repeated = int((known & mask).sum())
        if repeated > 0.1 * max(int(mask.sum()), 1):
            yield (
                f"{repeated:,} of {int(mask.sum()):,} {part} nodes have exactly the features of a "
                "training node: if they are copies, the score is too good."
            )


def _row_hashes(x: torch.Tensor) -> np.ndarray:
    """[n]: equal numbers for equal rows."""
    if x.layout is torch.sparse_csr:
        crow, col = x.crow_indices().tolist(), x.col_indices().numpy()
        values = x.values().numpy()
        rows = [(col[a:b].tobytes(), values[a:b].tobytes()) for a, b in pairwise(crow)]
        return np.array([hash(row) for row in rows])
    return np.array([hash(row.tobytes()) for row in x.numpy() + 0.0])  # −0 becomes 0


def _column_problems(graph: OwnGraph) -> Iterator[str]:
    constant, outlying = [], []
    y = None if graph.multi_label else graph.y.numpy()
    for name, values, several in _columns(graph):
        if not several and len(np.unique(values)) == 1 and len(values) > 1:
            constant.append(name)
            continue
        if not several and _is_counter(values):
            yield (
                f"The column {name!r} counts the nodes, like an id: leave it out with "
                f"drop={name}, or it will be learnt by heart."
            )
        elif y is not None and _determines(values, y, ordered=not several):
            yield (
                f"The column {name!r} alone predicts {DETERMINED:.0%} of the labels or more: it "
                f"may be derived from them; leave it out with drop={name} unless it is known in "
                "advance."
            )
        if not several and graph.options.scale == "standard" and np.abs(values).max() > 50:
            outlying.append(name)
    if constant:
        yield (
            f"{len(constant)} feature columns are constant, such as {constant[0]!r}: they carry "
            "no information."
        )
    if outlying:
        yield (
            f"{len(outlying)} columns have a number more than 50 deviations from the mean, such "
            f"as {outlying[0]!r}: look for a mistake, or take its logarithm."
        )


def _columns(graph: OwnGraph) -> Iterator[tuple[str, np.ndarray, bool]]:
    """(name, one value per node, whether it is categorical) of each column of the table or x."""
    for block in graph.blocks[:MOST_COLUMNS]:
        if block.plan.kind == "number":
            yield block.plan.name, np.asarray(block.values)[:, 0], False
        elif block.plan.kind == "category":
            rows = block.values.tocsr()
            codes = np.full(rows.shape[0], -1)
            codes[np.diff(rows.indptr) > 0] = rows.indices
            yield block.plan.name, codes, True
    if not graph.blocks and graph.x.layout is torch.strided:
        for number in range(min(graph.x.shape[1], MOST_COLUMNS)):
            yield f"x{number}", graph.x[:, number].numpy(), False


def _is_counter(values: np.ndarray) -> bool:
    """Whether all values differ and are evenly spaced."""
    if len(values) < 10:
        return False
    steps = np.diff(np.sort(values))
    return bool(steps.min() > 0 and steps.max() - steps.min() < 1e-6 * steps.max())


def _determines(values: np.ndarray, y: np.ndarray, ordered: bool) -> bool:
    """Whether the values, or a few intervals of them, predict nearly all labels.

    The most frequent label of each value must be right for 99% of the nodes, while no label is
    that frequent overall. In addition, the values must be few, or these labels must change rarely
    along the sorted values.
    """
    known = y >= 0
    values, labels = values[known], y[known]
    if len(labels) < 20 or np.bincount(labels).max() > COMMON * len(labels):
        return False
    distinct, group = np.unique(values, return_inverse=True)
    classes = int(labels.max()) + 1
    if len(distinct) * classes > 10**8:
        return False
    counts = np.zeros((len(distinct), classes), dtype=np.int32)
    np.add.at(counts, (group, labels), 1)
    if counts.max(1).sum() < DETERMINED * len(labels):
        return False
    if len(distinct) <= len(labels) // 5:
        return True
    changes = int((np.diff(counts.argmax(1)) != 0).sum())
    return ordered and changes < 2 * len(np.unique(labels))


def _advice(graph: OwnGraph, adjusted: float, path: str) -> dict[str, str]:
    """How to begin, and what the training will have to cope with."""
    if not graph.edges.index.size:
        why = "without edges every node is seen by itself"
    elif graph.multi_label or math.isnan(adjusted):
        why = "it tries several recipes and keeps the best on validation nodes"
    elif adjusted < 0.1:
        why = (
            "neighbours hardly share classes: it also tries networks that keep a node apart from "
            "its neighbours, and one that ignores them"
        )
    elif _labels_per_class(graph) < 50:
        why = "labels are few and neighbours share classes: cheap recipes, then a deep network"
    else:
        why = "labels are many and neighbours share classes: cheap recipes, then wide networks"
    needed = ""
    if not graph.x.shape[1]:
        needed += " --read structure=degree,pagerank"
    if _too_small_to_split(graph):
        needed += " --read rare=unlabel"
    return {"command": f"deepgat train {path}{needed}", "why": why, "uneven": _uneven(graph)}


def _uneven(graph: OwnGraph) -> str:
    """A sentence where accuracy would hide how small classes are predicted; else nothing."""
    sizes = sorted(graph.class_sizes.items(), key=lambda item: item[1])
    total = sum(size for _, size in sizes)
    if graph.multi_label or len(sizes) < 2:
        return ""
    (rare, few), (common, many) = sizes[0], sizes[-1]
    if many < UNEVEN * few and many <= MAJORITY * total:
        return ""
    metric = "roc_auc" if len(sizes) == 2 else "balanced_accuracy"
    return (
        f"The classes are uneven ({common[:40]!r} has {many:,} nodes, {many / total:.0%}, and "
        f"{rare[:40]!r} {few:,}), so accuracy says little about small ones: add --metric {metric} "
        "to choose the epoch by what they weigh too, and --class-weight balanced to learn them."
    )


def _labels_per_class(graph: OwnGraph) -> float:
    """Training nodes per class, from the graph's split or 60% of the labelled nodes."""
    classes = max(len(graph.class_names), 1)
    if graph.masks is not None:
        return float(graph.masks[0].sum()) / classes
    return 0.6 * float(graph.labelled.sum()) / classes
