"""Runs a model on the receptive field of some nodes of a kept graph."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from deepgat.data.grown_graph import GrownGraph, Surroundings
from deepgat.data.label_features import propagate_labels
from deepgat.errors import UserError
from deepgat.models import LayerOutputs, Network
from deepgat.models.chunked import Chunks
from deepgat.models.field import Field, radius, run_field
from deepgat.ops import Columns, as_features

_CHUNKS_TAKE_TURNS = threading.Lock()
"""The part of a graph that operators see is one global value."""


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
    if network.graph_wide:
        if hops is not None:
            raise UserError(
                f"hops cuts off the graph around a node, but {network.graph_wide}: leave hops out"
            )
        around = graph.around(np.arange(graph.num_nodes), 0, cut=True)
        around = Surroundings(around.nodes, around.distance, around.neighbors, targets)
        read = np.ones(graph.num_nodes, dtype=bool)
    else:
        asked = radius(network)
        cut = hops is not None and hops < asked.lists
        around = graph.around(targets, hops if cut and hops is not None else asked.lists, cut)
        read = around.distance <= asked.features
    x = as_features(graph.features(around.nodes, read))
    assert not isinstance(x, Columns)
    places = torch.from_numpy(around.targets)
    z = _label_features(network, graph, around)
    if chunk and len(around.nodes) > chunk:
        with _CHUNKS_TAKE_TURNS:
            logits = Chunks(x, around.neighbors, chunk).logits(network, z)[places]
        return LayerOutputs(logits, {network.num_layers: logits}, [])
    field = Field(around.neighbors, torch.from_numpy(around.distance), places, z)
    return run_field(network, x, field)


def _label_features(network: Network, graph: GrownGraph, around: Surroundings) -> Tensor | None:
    """z [m, hops, C] as training made it; that of nodes at the rim is incomplete and not read."""
    if not network.label_hops:
        return None
    known = graph.training_labels(around.nodes, network.out_channels)
    index, hops = around.neighbors.edge_index, network.label_hops
    return propagate_labels(index, known, len(known), hops, network.first_labels).float()
