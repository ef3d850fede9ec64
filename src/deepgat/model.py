"""A trained model in use: ``predict`` any graph, ``explain`` a node, save, export, view."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
from deepgat.data.names import Names
from deepgat.data.transforms import MASKS
from deepgat.errors import UserError
from deepgat.files import check_can_write, write_whole
from deepgat.inductive import DECIDED, fitting, given_new, node_numbers, read_new
from deepgat.model_folder import (
    load_run,
    read_calibration,
    read_graph,
    read_search,
    read_split_digest,
    save_run,
    split_digest,
)
from deepgat.model_inputs import dataset_for, kept_dataset, with_classes_of, without_scored_nodes
from deepgat.models import LayerOutputs, Network
from deepgat.models.outputs import Until
from deepgat.models.registry import ENSEMBLE
from deepgat.predictions import Explanation, Predictions, PredictOptions
from deepgat.training.device import choose_device
from deepgat.training.evaluate import Evaluation, evaluate
from deepgat.training.inputs import prepare
from deepgat.training.minibatch import in_chunks
from deepgat.training.receptive_field import field_outputs
from deepgat.training.run import ModelCard, Run

if TYPE_CHECKING:
    from deepgat.export import Exported


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
    """What ``auto`` tried, as plain values; empty where the model was named."""
    kept: KeptGraph | None = None
    """The training graph in the model's folder, mapped from disk; None if it was not kept."""
    other_graph: KeptGraph | None = None
    """Where new nodes are added, if not to the training graph: :meth:`with_graph`."""
    calibration: Calibration = field(default_factory=Calibration)
    """What validation nodes tell of the probabilities: the temperature, and conformal scores."""
    split_sha256: str = ""
    """A fingerprint of the split in training, of a model read from a folder."""

    @staticmethod
    def of(run: Run, data: NodeDataset) -> Model:
        """The model of a training run."""
        return Model(
            run.model,
            run.card,
            run=run,
            dataset=data,
            search={} if run.search is None else run.search.to_dict(),
            calibration=run.evaluation.calibration,
        )

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
            split_sha256=read_split_digest(folder),
        )

    def __repr__(self) -> str:
        card, layers = self.card, self.network.num_layers
        return f"Model(system={card.system!r}, num_layers={layers}, dataset={card.dataset!r})"

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
            format: "pt2" (torch.export), "onnx" or "aoti" (AOTInductor, compiled for this
                machine's processor); left out: by the ending of ``path``, .pt2 or .onnx.
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
        return list(self.search.get("leaderboard", []))

    @cached_property
    def training_data(self) -> NodeDataset:
        """The graph that the model was trained on: in memory, in its folder, or where it was."""
        if self.dataset is not None:
            return self.dataset
        if self.kept is not None:
            return kept_dataset(self.kept, self.card)
        try:
            return self._without_other_split(self.card.load_data())
        except UserError as error:
            raise UserError(
                f"the training graph is not in the model folder and cannot be read again ({error}):"
                " give a graph, or train the model with its graph kept (keep_graph=True in Python, "
                "--keep-graph on the command line)"
            ) from error

    def data_for(
        self, graph: str | None = None, split: str | None = None, **reading: Any
    ) -> NodeDataset:
        """A graph by its name or path, read like the training graph; left out: the training graph.

        A graph that is named is read where it is, even if the model's folder keeps it.
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
        if split is None and not reading:
            if graph is None or (same and self.dataset is not None):
                return self.training_data
            if same:
                return self._without_other_split(card.load_data())
        name = card.dataset if graph is None else graph
        split = card.split if same and split is None else split
        data = load_graph(name, split, **(card.reading_by_plan() | reading))
        data = self._without_other_split(data)
        return with_classes_of(card, data) if card.feature_names else data

    def _without_other_split(self, data: NodeDataset) -> NodeDataset:
        """Nothing to score where the test nodes may be nodes that the model was trained on."""
        return without_scored_nodes(data) if self.drawn_anew(data) else data

    def drawn_anew(self, data: NodeDataset) -> bool:
        """Whether data is the training graph, changed so much that its split is another one."""
        same = data.name == self.card.dataset and data.split == self.card.split
        return bool(self.split_sha256) and same and split_digest(data) != self.split_sha256

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

    def evaluate(
        self, graph: NodeDataset | Data | None = None, device: str | None = None
    ) -> Evaluation:
        """Score the model on the training, validation and test nodes of a graph.

        Args:
            graph: with labels and masks; left out, the graph that the model was trained on.
            device: left out, that of the training.
        """
        data = self.training_data if graph is None else self._fitting(graph)
        if not any(bool(each[mask].any()) for each in data.graphs for mask in MASKS):
            raise UserError(
                f"{data.title} has no labels to score: give a graph with labels, and with nodes in "
                "train_mask, val_mask or test_mask"
            )
        if graph is None and self.drawn_anew(data):
            raise UserError(
                f"{data.title} has changed since the model was trained, so its split "
                f"{self.card.split} now has other nodes for training and for tests: scores would "
                "count nodes that the model knows. Give nodes a column split, or keep the graph "
                "with the model (keep_graph=True, --keep-graph), and train again"
            )
        training = self.card.training
        where = training.device if device is None else device
        return evaluate(
            self.network, data, where, chunk=training.chunk, calibration=self.calibration
        )

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
        options = PredictOptions(early_exit, coverage, class_conditional, abstain)
        if nodes is not None:
            base = self.base if graph is None else KeptGraph.of(self._fitting(graph))
            return self._around(GrownGraph(base), node_numbers(base, nodes), hops, options)
        if hops is not None:
            raise UserError("hops is for some nodes of a graph: give nodes too, or leave it out")
        data = self.training_data if graph is None else graph
        outputs = self.outputs(data, until=None if early_exit is None else early_exit.until())
        return self._predictions(outputs, options, len(outputs.hidden))

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
        options = PredictOptions(early_exit, coverage, class_conditional, abstain)
        base = self.base
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
        return self._around(graph, targets, hops, options)

    def read_new(self, nodes: Any, edges: Any = None, **reading: Any) -> NewNodes:
        """New nodes from tables, as :meth:`predict_new` takes them; with their ids and notes.

        ``reading`` replaces options that the training graph was read with.
        """
        return read_new(self.card, self.base, nodes, edges, **reading)

    def with_graph(self, graph: NodeDataset | Data) -> Model:
        """The same model, with another graph in place of the training graph to add new nodes to."""
        return replace(self, other_graph=KeptGraph.of(self._fitting(graph)))

    @cached_property
    def base(self) -> KeptGraph:
        """The graph that new nodes are added to."""
        found = self.other_graph or self.kept
        return found or KeptGraph.of(self._fitting(self.training_data))

    def _around(
        self, graph: GrownGraph, targets: np.ndarray, hops: int | None, options: PredictOptions
    ) -> Predictions:
        """Predictions for some nodes from their receptive field."""
        if self.network.needs_labels:
            raise UserError("the oracle must be shown every label: it predicts whole graphs only")
        self.network.to(choose_device(self.card.training.device)).eval()
        chunk = 0 if options.early_exit is not None else self.card.training.chunk
        outputs = field_outputs(self.network, graph, targets, hops, chunk)
        _check_finite(outputs.logits)
        return self._predictions(outputs, options, self.network.num_layers)

    def _predictions(
        self, outputs: LayerOutputs, options: PredictOptions, computed: int
    ) -> Predictions:
        if options.early_exit is not None:
            layers = {layer: each.float().cpu() for layer, each in outputs.layer_logits.items()}
            shares, stopped = options.early_exit.apply(layers)
            found = Predictions(shares.argmax(1), shares, stopped, computed)
        else:
            found = self.predictions_of(outputs.logits, options.coverage, options.class_conditional)
        if options.abstain is None:
            return found
        return replace(found, labels=abstained(found.labels, found.confidence, options.abstain))

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
        if self.card.system == ENSEMBLE:
            raise UserError(
                "early exit needs one network whose every layer predicts, and this model is a mean "
                "of several or multiplies the probabilities of classes: train one by its name, "
                "such as model=deep"
            )
        if self.card.multi_label:
            raise UserError("early exit needs one class per node: this model predicts labels")
        if len(self.training_data.graphs) != 1:
            raise UserError("early exit needs one graph of training: this model had several")
        graph = self.training_data.graph
        if not bool(graph.val_mask.any()):
            raise UserError(
                f"early exit is chosen on validation nodes: {self.training_data.title} has none"
            )
        outputs = self.outputs(self.training_data)
        nodes = graph.val_mask.nonzero().squeeze(1)
        logits = {k: v.float().cpu()[nodes] for k, v in outputs.layer_logits.items()}
        return choose_exits(logits, graph.y[nodes].cpu(), tolerance)

    def explain(self, node: int | str, graph: NodeDataset | Data | None = None) -> Explanation:
        """What every layer predicts for a node of a graph (left out: that of the training).

        The node is given by its number or, as a text, by its id.
        """
        data = self._fitting(self.training_data if graph is None else graph)
        n = data.graph.num_nodes
        if isinstance(node, str):
            node = Names.of(data).find(node, n)
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
        return dataset_for(self.card, graph)


def _check_finite(logits: Tensor) -> None:
    if not bool(logits.isfinite().all()):
        raise UserError(
            "the model's outputs for this graph are not finite numbers: its features may be too "
            "large, or the model's weights damaged"
        )
