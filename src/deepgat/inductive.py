"""Converts new nodes, and names of nodes, into what a trained model reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepgat.data import FeaturePlan, ReadOptions
from deepgat.data.grown_graph import NewNodes
from deepgat.data.kept_graph import KeptGraph
from deepgat.data.new_nodes import read_new_nodes
from deepgat.data.tables.plan import ColumnPlan
from deepgat.errors import UserError
from deepgat.model_inputs import check_columns
from deepgat.training.run import ModelCard

DECIDED = frozenset(("text", "drop", "structure", "scale"))
"""Reading options that determine the features; a trained model has fixed them."""


def node_numbers(graph: KeptGraph, nodes: Any) -> np.ndarray:
    """The numbers [k] int64 of nodes given by number or, as texts, by id."""
    if isinstance(nodes, str | Integral):
        nodes = [nodes]
    if not isinstance(nodes, Iterable):
        raise UserError(f"nodes is {type(nodes).__name__}: expected a list of numbers or ids")
    given = nodes.tolist() if isinstance(nodes, Tensor | np.ndarray) else list(nodes)
    if not given:
        raise UserError("nodes is empty: name at least one node")
    numbers, last = [], graph.num_nodes - 1
    for node in given:
        if isinstance(node, bool) or not isinstance(node, str | Integral):
            raise UserError(
                f"nodes holds {node!r}: expected numbers of nodes, or their ids as texts"
            )
        number = graph.number(node if isinstance(node, str) else int(node))
        if number < 0:
            by_id = isinstance(node, str) and graph.ids is not None
            choices = "give one of its ids" if by_id else f"its nodes run from 0 to {last}"
            raise UserError(f"the graph has no node {node!r}: {choices}")
        numbers.append(number)
    return np.array(numbers, dtype=np.int64)


def read_new(
    card: ModelCard, graph: KeptGraph, nodes: Any, edges: Any = None, **reading: Any
) -> NewNodes:
    """New nodes from tables, with features as in training; ``reading`` replaces its options."""
    for name in DECIDED.intersection(reading):
        raise UserError(f"{name} was decided when the model was trained: leave it out")
    plan = FeaturePlan.of(card.feature_plan)
    if structure := [item.name for item in plan.columns if item.kind == "structure"]:
        raise UserError(
            f"the model reads structural features ({structure[0]}), which new edges change all "
            "over the graph: predict for the whole new graph"
        )
    x = None if plan.columns or card.feature_names else _listed(nodes, card.num_features)
    if x is not None:
        nodes = [{name: row[name] for name in row if name != "x"} for row in nodes]
    elif not plan.columns:  # the training graph came with its features
        names = card.feature_names or [f"x{number}" for number in range(card.num_features)]
        plan = FeaturePlan(tuple(ColumnPlan(name, "number") for name in names))
    options = {**card.reading, **reading, "plan": plan}
    if not card.feature_names:
        options.setdefault("undirected", graph.symmetric)
    new = read_new_nodes(graph, nodes, edges, ReadOptions.of(options))
    return fitting(card, new if x is None else replace(new, x=x))


def _listed(nodes: Any, num_features: int) -> Tensor | None:
    """[k, d]: the features of nodes that are dictionaries, each with a list of numbers ``x``.

    Otherwise None: the nodes are a table. To make a column of every feature would take long.
    """
    if not isinstance(nodes, list) or not nodes or not all(isinstance(row, dict) for row in nodes):
        return None
    rows = [row.get("x") for row in nodes]
    if not all(isinstance(row, list) for row in rows):
        return None
    for number, row in enumerate(rows, start=1):
        numbers = all(isinstance(value, Real) and not isinstance(value, bool) for value in row)
        if len(row) != num_features or not numbers:
            raise UserError(
                f"nodes, row {number}, column 'x': expected a list of {num_features} numbers, the "
                "features of the node"
            )
    try:
        return torch.from_numpy(np.array(rows, dtype=np.float64)).float()
    except OverflowError as error:
        raise UserError("nodes, column 'x': a number is too large for a feature") from error


def given_new(
    x: Any,
    edge_index: Tensor | None,
    edge_weight: Tensor | None = None,
    edge_attr: Tensor | None = None,
) -> NewNodes:
    """New nodes from tensors; edges are taken as they are, as everywhere in PyG."""
    x = torch.as_tensor(x)
    if x.dim() != 2 or x.is_complex() or not x.size(0):
        raise UserError(
            f"x has shape {list(x.shape)} and type {x.dtype}: expected [new nodes, features] real "
            "numbers"
        )
    if edge_index is None:
        edge_index = torch.empty(2, 0, dtype=torch.long)
    index = torch.as_tensor(edge_index)
    index = index.long() if index.dtype in (torch.int32, torch.int16, torch.int8) else index
    values = (edge_weight, edge_attr)
    weight, attr = (None if v is None else torch.as_tensor(v).cpu().float() for v in values)
    return NewNodes(x.detach().cpu().float(), index.cpu(), weight, attr)


def fitting(card: ModelCard, new: NewNodes) -> NewNodes:
    """The new nodes, if they have what the model was trained with; a :class:`UserError` if not."""
    values = new.x if new.x.layout == torch.strided else new.x.to_sparse_csr().values()
    if not bool(values.isfinite().all()):
        raise UserError("x of the new nodes holds NaN or infinite numbers: replace them")
    count = new.edge_index.shape[1] if new.edge_index.dim() == 2 else 0
    if not count:
        new = replace(
            new,
            edge_weight=torch.zeros(0) if card.edge_weights else None,
            edge_attr=torch.zeros(0, card.edge_features) if card.edge_features else None,
        )
    width = 0 if new.edge_attr is None else new.edge_attr.shape[-1]
    weighted = new.edge_weight is not None
    check_columns(card, new.x.shape[1], width, weighted, "the new nodes have", "the new edges have")
    return new
