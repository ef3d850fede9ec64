"""A trained model in use: ``fit`` a graph, ``predict`` any graph, ``explain`` a node."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.analysis import Calibration, predicted_labels
from deepgat.analysis.early_exit import ExitPolicy, choose_exits
from deepgat.analysis.selective import abstained
from deepgat.data import NodeDataset, load_graph
from deepgat.data.grown_graph import GrownGraph, NewNodes
from deepgat.data.kept_graph import KeptGraph
from deepgat.data.transforms import SPLITS
from deepgat.errors import UserError
from deepgat.files import check_can_write, write_whole
from deepgat.inductive import DECIDED, fitting, given_new, node_numbers, read_new
from deepgat.machine import memory_bound
from deepgat.model_folder import load_run, read_calibration, read_graph, read_search, save_run
from deepgat.models import LayerOutputs, Network
from deepgat.models.outputs import Until
from deepgat.training.auto import train_auto
from deepgat.training.device import choose_device
from deepgat.training.evaluate import evaluate
from deepgat.training.fields import field_outputs
from deepgat.training.inputs import prepare
from deepgat.training.memory import read_memory
from deepgat.training.minibatch import in_chunks
from deepgat.training.recipes import drop_unsuited_self_training, recipe
from deepgat.training.resume import Epoch
from deepgat.training.run import ModelCard, Run, train_once
from deepgat.training.search import Request, is_auto

if TYPE_CHECKING:
    from deepgat.export import Exported

MOST_CLASSES = 10**7
"""Of a graph in memory."""


def fit(
    graph: NodeDataset | Data | str,
    model: str | None = None,
    *,
    preset: str | None = None,
    seed: int = 0,
    training: Mapping[str, Any] | None = None,
    quality: str | None = None,
    time_limit: float | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    max_memory: str | float | None = None,
    **settings: Any,
) -> Model:
    """Train a model on a graph; the same numbers as ``deepgat train`` with the same settings.

    Args:
        graph: what ``load_graph`` returns or takes, or a PyG graph with ``x``, ``edge_index``,
            ``y`` and the three masks.
        model: a system; left out, or "auto": the best of several recipes on validation nodes.
            Settings without a system's name are those of ``deep``.
        preset, training, settings: as in :func:`deepgat.recipe`. With auto ``training`` may hold
            what applies to every recipe, such as the device or the monitor.
        seed: of the weights and dropout.
        quality, time_limit: of auto, as in :class:`~deepgat.training.search.Request`; left out,
            "good" and none.
        on_epoch: called after every epoch.
        max_memory: the most that the process may take, as "4G" or in bytes; left out: what the
            machine has. Where it is too small for the whole graph, layers are recomputed or the
            graph is trained in clusters, and a warning says so.
    """
    bound = read_memory(max_memory)
    data = as_dataset(graph)
    if is_auto(model, preset, settings, training or {}):
        request = Request("good" if quality is None else quality, time_limit, training or {})
        watch = None if on_epoch is None else lambda step: on_epoch(step.epoch)
        with memory_bound(bound):
            run = train_auto(data, request, seed, watch)
        return Model.of(run, data)
    if quality is not None or time_limit is not None:
        raise UserError("quality and time_limit are of auto: leave them out, or the model's name")
    plan = recipe(model, preset=preset, dataset=data.name, training=training, **settings)
    plan = drop_unsuited_self_training(plan, data, training or ())
    with memory_bound(bound):
        run = train_once(data, plan, seed, on_epoch)
    return Model.of(run, data)


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of every node of one graph: n nodes, C classes."""

    labels: Tensor
    """[n] classes, −1 where the model abstains; or [n, C] bool of independent labels."""
    probabilities: Tensor
    """[n, C], calibrated on validation nodes."""
    layers: Tensor | None = None
    """[n]: the layer whose prediction was taken, where prediction may stop early."""
    computed: int | None = None
    """How many layers were computed for that; all where some node was never sure."""
    sets: Tensor | None = None
    """[n, C] bool: the classes in each node's prediction set, where a coverage was asked for."""

    @property
    def confidence(self) -> Tensor:
        """[n]: the probability of the class; with independent labels that of the least sure one."""
        if self.labels.dim() == 1:
            return self.probabilities.max(1).values
        sure = torch.where(self.labels, self.probabilities, 1 - self.probabilities)
        return sure.min(1).values


@dataclass(frozen=True)
class Told:
    """What a prediction is to say besides the class; fields as in :meth:`Model.predict`."""

    early_exit: ExitPolicy | None = None
    coverage: float | None = None
    class_conditional: bool = False
    abstain: float | None = None

    def __post_init__(self) -> None:
        if self.class_conditional and self.coverage is None:
            raise UserError("class_conditional is a kind of coverage: give coverage too")
        if self.coverage is not None and self.early_exit is not None:
            raise UserError("coverage is of the last layer's predictions: leave early_exit out")


@dataclass(frozen=True, eq=False)
class Explanation:
    """One node: what every layer predicts for it, and whom it listens to in every layer."""

    node: int
    neighbors: Tensor
    """[k] nodes u ∈ N_v, the node itself first."""
    layers: dict[int, Tensor]
    """{l: [k, C]}: the probabilities after layer l, of the node (row 0) and its neighbours, all
    with the model's one temperature."""
    attention: Tensor
    """[L, k]: α_vu of every layer, heads averaged; layer l compares the predictions of l − 1."""
    label: int | None
    """The node's own class where it is known."""

    @property
    def classes(self) -> dict[int, int]:
        """{l: the class that layer l predicts for the node}."""
        return {layer: int(shares[0].argmax()) for layer, shares in self.layers.items()}


@dataclass(frozen=True, eq=False)
class Model:
    """A trained network with what it was trained on."""

    network: Network
    card: ModelCard
    run: Run | None = None
    """The training run; None for a model read from a folder."""
    dataset: NodeDataset | None = None
    """The training graph, if it is in memory; otherwise it is loaded by name when needed."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """What ``auto`` tried, of a model read from a folder."""
    kept: KeptGraph | None = None
    """The training graph in the model's folder, mapped from disk; None if it was not kept."""
    calibration: Calibration = field(default_factory=Calibration)
    """What validation nodes tell of the probabilities: the temperature, and conformal scores."""

    @staticmethod
    def of(run: Run, data: NodeDataset) -> Model:
        """The model of a training run."""
        calibration = run.evaluation.calibration
        return Model(run.model, run.card, run=run, dataset=data, calibration=calibration)

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> Model:
        """The model in a folder that ``save`` or ``deepgat train --out`` wrote."""
        network, card = load_run(folder)
        return Model(
            network,
            card,
            search=read_search(folder),
            kept=read_graph(folder, card),
            calibration=read_calibration(folder, card.num_classes),
        )

    def save(self, folder: str | os.PathLike[str], keep_graph: bool = False) -> Path:
        """Write the model, its scores and its predictions as a new folder.

        ``keep_graph`` writes the training graph too: features, edges, ids, labels and split. New
        nodes can then be predicted from the folder alone (:meth:`predict_new`).
        """
        if self.run is None:
            raise UserError("this model was read from a folder: copy that folder")
        return save_run(folder, self.run, self.training_data, keep_graph)

    def export(
        self, path: str | os.PathLike[str], format: str | None = None, *, sparse: bool = False
    ) -> Exported:
        """Write the model as a program for other runtimes, which do not need deepgat.

        Args:
            path: the file.
            format: "pt2" (torch.export) or "onnx"; left out: by the ending of ``path``.
            sparse: the program takes features as the three tensors of a CSR matrix.

        ``docs/export.md`` has the program's inputs and outputs.
        """
        from deepgat.export import export_model  # here: it loads torch's exporter

        return export_model(
            self.network,
            self.card,
            path,
            format,
            sparse=sparse,
            temperature=self.calibration.temperature,
        )

    def leaderboard(self) -> list[dict[str, Any]]:
        """What ``auto`` tried, best first: a table for each, with its validation score.

        Empty where the model was named.
        """
        if self.run is not None:
            return [] if self.run.search is None else list(self.run.search.leaderboard)
        return list(self.search.get("leaderboard", []))

    @cached_property
    def training_data(self) -> NodeDataset:
        """The graph that the model was trained on."""
        if self.dataset is not None:
            return self.dataset
        return self.card.load_data()

    def data_for(
        self, graph: str | None = None, split: str | None = None, **reading: Any
    ) -> NodeDataset:
        """A graph by its name or path, read like the training graph; left out: the training graph.

        The features of your own graph are made as in training: columns are matched by name,
        numbers scaled and gaps filled with the training graph's means, categories and words kept
        if the training graph had them.
        Its classes are taken by name too, and what the model does not know is unlabelled.
        ``reading`` replaces options that the training graph was read with.
        """
        card = self.card
        for name in DECIDED.intersection(reading):
            raise UserError(f"{name} was decided when the model was trained: leave it out")
        same = graph is None or card.dataset in (graph, graph.lower(), os.path.abspath(graph))
        if same and split is None and not reading:
            return self.training_data
        name = card.dataset if graph is None else graph
        split = card.split if same and split is None else split
        data = load_graph(name, split, **(card.reading_by_plan() | reading))
        return self._renamed(data) if card.feature_names else data

    def _renamed(self, data: NodeDataset) -> NodeDataset:
        """Another graph of yours, with its classes numbered like the model's."""
        known, names = self.card.feature_names, list(data.feature_names)
        if names != known:
            found, trained = set(names), set(known)
            missing = [name for name in known if name not in found]
            more = [name for name in names if name not in trained]
            told = f"lacks {', '.join(missing[:5])}" if missing else f"has {', '.join(more[:5])}"
            raise UserError(
                f"{data.title} {told}, unlike the graph that the model was trained on: give it the "
                "same features"
            )
        classes = tuple(self.card.class_names)
        if data.class_names == classes:
            return data
        numbers = {name: k for k, name in enumerate(classes)}
        place = torch.tensor([numbers.get(name, -1) for name in data.class_names] + [-1])
        graph, y = data.graph.clone(), data.graph.y
        if data.multi_label:
            here = (place[:-1] >= 0).nonzero().squeeze(1)
            graph.y = torch.zeros(graph.num_nodes, len(classes))
            graph.y[:, place[here]] = y[:, here]
        else:
            graph.y = place[y]  # −1, unlabelled, is the last
            for part in SPLITS:
                graph[f"{part}_mask"] = graph[f"{part}_mask"] & (graph.y >= 0)
        return replace(data, graphs=(graph,), class_names=classes)

    @property
    def scores(self) -> dict[str, float]:
        """Micro-F1 on the training, validation and test nodes."""
        if self.run is None:
            raise UserError("this model was read from a folder: score it with evaluate")
        return dict(self.run.evaluation.micro_f1)

    @property
    def metrics(self) -> dict[str, dict[str, float | None]]:
        """{metric: {part: value}}: all of :data:`deepgat.analysis.METRICS`; None: not defined."""
        if self.run is None:
            raise UserError("this model was read from a folder: score it with evaluate")
        return {name: dict(parts) for name, parts in self.run.evaluation.metrics.items()}

    def outputs(
        self,
        graph: NodeDataset | Data,
        with_attention: bool = False,
        until: Until | None = None,
    ) -> LayerOutputs:
        """All that every layer computes for one graph, on the CPU or wherever the model runs.

        Labels of the graph's training nodes (``train_mask``) are known to the model, others not;
        a graph without labels or masks has none that are. ``until`` may end the run early. A model
        that was trained with mini-batches computes its logits alone, layer by layer in chunks,
        unless ``with_attention`` or ``until`` is given.
        """
        device = choose_device(self.card.training.device)
        self.network.to(device).eval()
        data = self._fitting(graph)
        if self.network.needs_labels and bool((data.graph.y < 0).any()):
            raise UserError("the oracle must be shown every label: it cannot predict any")
        chunk = 0 if with_attention or until is not None else self.card.training.chunk
        (inputs,) = prepare(self.network, data, torch.device("cpu") if chunk else device)
        if chunk:
            inputs = in_chunks(inputs, chunk, device)
        with torch.no_grad():
            found = inputs.run(self.network, with_attention, until=until)
        _check_finite(found.logits)
        return found

    def predict(
        self,
        graph: NodeDataset | Data | None = None,
        early_exit: ExitPolicy | None = None,
        *,
        nodes: Any = None,
        hops: int | None = None,
        coverage: float | None = None,
        class_conditional: bool = False,
        abstain: float | None = None,
    ) -> Predictions:
        """The class of every node of this graph or any other with the same features.

        Args:
            graph: left out, the graph that the model was trained on.
            early_exit: takes every node's prediction from the first layer that is sure enough;
                layers after the one where the last node became sure are not computed.
            nodes: predict only these, given by number or, as texts, by id. The result has a row
                for each, equal to that of the whole graph. Only their receptive field is read,
                which is fastest for a model with its graph (``save(…, keep_graph=True)``).
            hops: cut the receptive field of ``nodes`` after so many hops: nodes further away are
                treated as if they did not exist. An approximation, for deep networks.
            coverage: also give every node a set of classes that holds the true one with this
                probability, such as 0.9 (:mod:`deepgat.analysis.conformal`).
            class_conditional: this coverage in each class by itself. A class with too few
                validation nodes, at 0.9 fewer than 9, is then in every set.
            abstain: give no label, −1, to nodes whose confidence is below this.
        """
        told = Told(early_exit, coverage, class_conditional, abstain)
        if nodes is not None:
            base = self._base if graph is None else KeptGraph.of(self._fitting(graph))
            return self._around(GrownGraph(base), node_numbers(base, nodes), hops, told)
        if hops is not None:
            raise UserError("hops is for some nodes of a graph: give nodes too, or leave it out")
        data = self.training_data if graph is None else graph
        outputs = self.outputs(data, until=None if early_exit is None else early_exit.until())
        return self._predictions(outputs, told, len(outputs.hidden))

    def predict_new(
        self,
        nodes: Any,
        edges: Any = None,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        hops: int | None = None,
        early_exit: ExitPolicy | None = None,
        coverage: float | None = None,
        class_conditional: bool = False,
        abstain: float | None = None,
    ) -> Predictions:
        """The class of new nodes, from the receptive field that they have in the training graph.

        Equal to predicting with the whole new graph. The training graph is not changed, and
        threads may call this at the same time. A model with its graph (``save(…,
        keep_graph=True)``) reads only what it needs from disk; any other loads the graph once.

        Args:
            nodes: features x [k, d]; or a table with the columns of ``nodes.csv`` (a path, a data
                frame, a list of dictionaries); or what :meth:`read_new` returned.
            edges: ``edge_index`` [2, e] in which the new nodes have the numbers after those of the
                training graph's n nodes: n … n + k − 1. Edges are taken as they are, so give both
                directions for an undirected graph. With tables: a table of the columns of
                ``edges.csv``, read like the training graph's. Left out: the nodes stand alone.
            edge_weight, edge_attr: [e] and [e, ·] with an ``edge_index``, if the model was trained
                with them.
            hops, early_exit, coverage, class_conditional, abstain: as in :meth:`predict`.

        Returns:
            A row for every new node, in their order.
        """
        told = Told(early_exit, coverage, class_conditional, abstain)
        base = self._base
        if isinstance(nodes, NewNodes):
            new = nodes
        elif isinstance(nodes, Tensor | np.ndarray):
            new = fitting(self.card, given_new(nodes, edges, edge_weight, edge_attr))
        else:
            if edge_weight is not None or edge_attr is not None:
                raise UserError(
                    "edge_weight and edge_attr are for an edge_index: a table of edges has columns"
                )
            new = self.read_new(nodes, edges)
        graph = GrownGraph(base, new)
        targets = np.arange(base.num_nodes, graph.num_nodes)
        return self._around(graph, targets, hops, told)

    def read_new(self, nodes: Any, edges: Any = None, **reading: Any) -> NewNodes:
        """New nodes from tables, as :meth:`predict_new` takes them; with their ids and notes.

        ``reading`` replaces options that the training graph was read with.
        """
        return read_new(self.card, self._base, nodes, edges, **reading)

    def with_graph(self, graph: NodeDataset | Data) -> Model:
        """The same model, with another graph in place of the training graph to add new nodes to."""
        return replace(self, kept=KeptGraph.of(self._fitting(graph)))

    @cached_property
    def _base(self) -> KeptGraph:
        """The graph that new nodes are added to."""
        return self.kept or KeptGraph.of(self._fitting(self.training_data))

    def _around(
        self, graph: GrownGraph, targets: np.ndarray, hops: int | None, told: Told
    ) -> Predictions:
        """Predictions for some nodes from their receptive field."""
        if self.network.needs_labels:
            raise UserError("the oracle must be shown every label: it predicts whole graphs only")
        self.network.to(choose_device(self.card.training.device)).eval()
        chunk = 0 if told.early_exit is not None else self.card.training.chunk
        outputs = field_outputs(self.network, graph, targets, hops, chunk)
        _check_finite(outputs.logits)
        return self._predictions(outputs, told, self.network.num_layers)

    def _predictions(self, outputs: LayerOutputs, told: Told, computed: int) -> Predictions:
        if told.early_exit is not None:
            layers = {layer: each.float().cpu() for layer, each in outputs.layer_logits.items()}
            shares, stopped = told.early_exit.apply(layers)
            found = Predictions(shares.argmax(1), shares, stopped, computed)
        else:
            found = self.predictions_of(outputs.logits, told.coverage, told.class_conditional)
        if told.abstain is None:
            return found
        return replace(found, labels=abstained(found.labels, found.confidence, told.abstain))

    def calibrate(self, graph: NodeDataset | Data, nodes: Tensor) -> Model:
        """The same model with temperature and conformal scores from other labelled nodes.

        The validation nodes, which calibrate at first, have also chosen the epoch, so coverage is
        approximate. Nodes that took no part in training make it exact.

        Args:
            graph: with labels of those nodes.
            nodes: their mask [n] or numbers [k].
        """
        data = self._fitting(graph)
        y = data.graph.y[nodes]
        if not len(y) or (y.dim() == 1 and int(y.min()) < 0):
            raise UserError("nodes to calibrate on: expected one or more, all of them labelled")
        found = Calibration.fit(self.outputs(data).logits.float().cpu()[nodes], y)
        run = self.run
        if run is not None:
            training = self.card.training
            scores = evaluate(
                self.network,
                self.training_data,
                training.device,
                chunk=training.chunk,
                calibration=found,
            )
            run = replace(run, evaluation=scores)
        return replace(self, calibration=found, run=run)

    def predictions_of(
        self, logits: Tensor, coverage: float | None = None, class_conditional: bool = False
    ) -> Predictions:
        """Labels, calibrated probabilities and, with ``coverage``, sets from logits [n, C]."""
        logits, multi = logits.float().cpu(), self.card.multi_label
        sets = None
        if coverage is not None:
            sets = self.calibration.sets(logits, coverage, class_conditional)
        shares = self.calibration.probabilities(logits, multi)
        return Predictions(predicted_labels(logits, multi), shares, sets=sets)

    def exit_policy(self, tolerance: float = 0.0) -> ExitPolicy:
        """When prediction may stop, chosen on the validation nodes of the training data."""
        if self.card.multi_label:
            raise UserError("early exit needs one class per node: this model predicts labels")
        if len(self.training_data.graphs) != 1:
            raise UserError("early exit needs one graph of training: this model had several")
        graph = self.training_data.graph
        outputs = self.outputs(self.training_data)
        nodes = graph.val_mask.nonzero().squeeze(1)
        logits = {k: v.float().cpu()[nodes] for k, v in outputs.layer_logits.items()}
        return choose_exits(logits, graph.y[nodes].cpu(), tolerance)

    def explain(self, node: int, graph: NodeDataset | Data | None = None) -> Explanation:
        """What every layer predicts for a node of a graph (left out: that of the training)."""
        data = self._fitting(self.training_data if graph is None else graph)
        n = data.graph.num_nodes
        if not 0 <= node < n:
            raise UserError(f"there is no node {node}: the graph's nodes run from 0 to {n - 1}")
        return self.explanation_of(node, self.outputs(data, with_attention=True), data)

    def explanation_of(self, node: int, outputs: LayerOutputs, data: NodeDataset) -> Explanation:
        """As :meth:`explain`, from what ``outputs(data, with_attention=True)`` computed."""
        if not outputs.attention:
            raise UserError(f"{self.card.system} has no attention to explain: it looks at no edges")
        edges = outputs.attention[0].edge_index.cpu()
        into = (edges[1] == node).nonzero().squeeze(1)
        others = edges[0, into]
        order = torch.argsort((others != node).int(), stable=True)  # the node itself first
        neighbors, into = others[order], into[order]
        label = int(data.graph.y[node]) if data.graph.y.dim() == 1 else -1
        return Explanation(
            node,
            neighbors,
            {
                layer: self.calibration.probabilities(
                    logits.float().cpu()[neighbors], self.card.multi_label
                )
                for layer, logits in sorted(outputs.layer_logits.items())
            },
            torch.stack([each.weight.float().cpu()[into].mean(1) for each in outputs.attention]),
            None if label < 0 else label,
        )

    def view(
        self,
        path: str | os.PathLike[str],
        graph: NodeDataset | Data | None = None,
        layout: str = "auto",
    ) -> Path:
        """Write a page that shows the model: one HTML file that a browser opens.

        ``graph``: left out, the training graph; ``layout`` as in :func:`deepgat.view.page`.
        """
        from deepgat.view import check_can_show, page  # here: it loads scikit-learn's layouts

        check_can_write(Path(path))
        check_can_show(self, layout)
        data = None if graph is None else self._fitting(graph)
        write_whole(Path(path), page(self, data, layout=layout))
        return Path(path)

    def _fitting(self, graph: NodeDataset | Data) -> NodeDataset:
        """The graph as a dataset of the classes that this model knows."""
        card = self.card
        data = as_dataset(graph, card.num_classes, card.multi_label)
        found = data.graph
        if found.num_features != card.num_features:
            raise UserError(
                f"the graph has {found.num_features} features per node but the model was trained "
                f"with {card.num_features}: predict for a graph with the same features"
            )
        if data.num_edge_features != card.edge_features:
            raise UserError(
                f"the graph has {data.num_edge_features} features per edge but the model was "
                f"trained with {card.edge_features}: give its edges the same columns"
            )
        if card.edge_weights and found.edge_weight is None:
            raise UserError(
                "the model was trained with weights of the edges: give these some too (1 each, if "
                "all weigh the same)"
            )
        if found.edge_weight is not None and not card.edge_weights:
            raise UserError(
                "the graph's edges have weights, but the model was trained without: train it with "
                "weights, or leave edge_weight out"
            )
        if card.multi_label:
            known = found.y.dim() == 2 and found.y.size(1) == card.num_classes
        else:
            known = found.y.dim() == 1 and int(found.y.max()) < card.num_classes
        if not known:  # labels of another task are no labels of this one
            bare = found.clone()
            for name in ("y", *(f"{part}_mask" for part in SPLITS)):
                del bare[name]
            found = as_dataset(bare, card.num_classes, card.multi_label).graph
        return replace(
            data, graphs=(found,), num_classes=card.num_classes, multi_label=card.multi_label
        )


def _check_finite(logits: Tensor) -> None:
    if not bool(logits.isfinite().all()):
        raise UserError(
            "the model's outputs for this graph are not finite numbers: its features may be too "
            "large, or the model's weights damaged"
        )


def as_dataset(
    graph: NodeDataset | Data | str, num_classes: int | None = None, multi_label: bool = False
) -> NodeDataset:
    """A dataset from its name, or from a PyG graph.

    A PyG graph without labels gets none of ``num_classes`` classes, or of as many independent
    labels with ``multi_label``. Masks that it lacks are empty.
    """
    if isinstance(graph, NodeDataset):
        return graph
    if isinstance(graph, str):
        return load_graph(graph)
    if not isinstance(graph, Data) or graph.x is None or graph.edge_index is None:
        raise UserError(
            f"graph is a {type(graph).__name__}: expected what load_graph returns, its name, or a "
            "PyG graph with x and edge_index"
        )
    whole, n = graph.clone(), graph.num_nodes
    if whole.y is None:
        whole.y = torch.zeros(n, num_classes or 0) if multi_label else torch.full((n,), -1)
    for part in SPLITS:
        if f"{part}_mask" not in whole:
            whole[f"{part}_mask"] = torch.zeros(n, dtype=torch.bool)
    multi = whole.y.dim() == 2
    if num_classes is None:
        num_classes = whole.y.size(1) if multi else _count_classes(whole.y)
    return NodeDataset(
        "graph", "the graph", (whole,), whole.num_features, num_classes, multi, "public"
    )


def _count_classes(y: Tensor) -> int:
    """The largest class number and one; 0 where y holds none, which the dataset's check tells."""
    if not y.numel() or y.is_complex() or y.is_floating_point():
        return 0
    count = max(0, int(y.max()) + 1)
    if count > MOST_CLASSES:
        raise UserError(
            f"y of the graph holds the class {count - 1}: classes are numbered from 0 to "
            f"{MOST_CLASSES - 1:,} at most; number yours by torch.unique(y, return_inverse=True)"
        )
    if count > y.numel():
        warnings.warn(
            f"y of the graph holds the class {count - 1:,}, but there are {y.numel():,} nodes: "
            "classes without a node cost time and memory; number yours by "
            "torch.unique(y, return_inverse=True)",
            stacklevel=4,
        )
    return count
