"""Runs a model on the receptive field of some nodes of a kept graph."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from deepgat.data.grown_graph import GrownGraph
from deepgat.data.label_features import propagate_labels
from deepgat.data.surroundings import Surroundings, around, everything
from deepgat.errors import UserError
from deepgat.models import LayerOutputs, Network
from deepgat.models.chunked import Chunks
from deepgat.models.field import Field, radius, run_field
from deepgat.ops import Columns, as_features

_CHUNKS_TAKE_TURNS = threading.Lock()
"""The part of a graph that operators see is one global value."""
LARGEST_SHARE = 0.5
"""Of the graph's nodes, up to which a field is searched. Layers that need more run on the
whole graph, whose lists need no search."""


def field_outputs(
    network: Network,
    graph: GrownGraph,
    targets: np.ndarray,
    hops: int | None = None,
    chunk: int = 0,
) -> LayerOutputs:
    """What a network computes for some nodes: rows [k, …] of its outputs for the whole graph.

    Where a layer needs the whole graph (``Network.graph_wide``), it gets the whole graph.

    Args:
        network: in evaluation mode, on any device.
        graph: the graph and its new nodes.
        targets: [k] int64 numbers of nodes.
        hops: left out, the result is exact. Otherwise nodes further away than this are treated as
            if they did not exist.
        chunk: above 0, fields of more nodes than this are run in chunks, and outputs of layers
            before the last are left out.
    """
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or hops < 0):
        raise UserError(f"hops is {hops!r}: expected a whole number of at least 0")
    found, core = _search(network, graph, targets, hops)
    z = _label_features(network, graph, found)
    if core is None and found.ends:
        asked = min(radius(network).features, found.hops)
        x = as_features(graph.features(found.nodes, found.ends[asked]))
    else:
        x = as_features(graph.all_features())
    assert not isinstance(x, Columns)
    places = torch.from_numpy(found.targets)
    if chunk and len(found.nodes) > chunk:
        with _CHUNKS_TAKE_TURNS:
            logits = Chunks(x, found.neighbors, chunk).logits(network, z)[places]
        return LayerOutputs(logits, {network.num_layers: logits}, [])
    inner = None
    if core is not None:
        nodes = torch.from_numpy(core.nodes)
        inner = nodes, _field(core, None if z is None else z[nodes])
    return run_field(network, x, _field(found, z, inner))


def _search(
    network: Network, graph: GrownGraph, targets: np.ndarray, hops: int | None
) -> tuple[Surroundings, Surroundings | None]:
    """The nodes that a network reads; if those are the whole graph, also a field inside it."""
    if network.graph_wide:
        if hops is not None:
            raise UserError(
                f"hops cuts off the graph around a node, but {network.graph_wide}: leave hops out"
            )
        return everything(graph, targets), None
    asked = radius(network)
    if hops is not None and hops < asked.lists:
        return around(graph, targets, hops, cut=True), None
    most = int(LARGEST_SHARE * graph.num_nodes)
    found = around(graph, targets, asked.lists, most=most)
    if found.hops == asked.lists:
        return found, None
    return everything(graph, targets), found if len(found.nodes) <= most else None


def _field(
    found: Surroundings, z: Tensor | None, core: tuple[Tensor, Field] | None = None
) -> Field:
    return Field(found.neighbors, torch.from_numpy(found.targets), found.ends, z, core)


def _label_features(network: Network, graph: GrownGraph, found: Surroundings) -> Tensor | None:
    """z [m, hops, C] as training made it; that of nodes at the rim is incomplete and not read."""
    if not network.label_hops:
        return None
    known = graph.training_labels(found.nodes, network.out_channels)
    index, hops = found.neighbors.edge_index, network.label_hops
    return propagate_labels(index, known, len(known), hops, network.first_labels).float()
