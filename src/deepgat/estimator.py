"""The scikit-learn estimator, a thin layer over the training loop."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch_geometric.data import Data

from deepgat.analysis.metrics import check_metric
from deepgat.data import NodeDataset
from deepgat.errors import UserError, unknown_name
from deepgat.estimator_inputs import (
    Labels,
    as_scipy,
    as_tensor,
    non_negative,
    read_graph,
    read_labels,
    read_nodes,
    read_weighted_edges,
    validation_rows,
)
from deepgat.machine import memory_bound
from deepgat.model import Model
from deepgat.models import find_system
from deepgat.training.auto import train_auto
from deepgat.training.inputs import WEIGHT
from deepgat.training.memory import read_memory
from deepgat.training.recipes import drop_unsuited_self_training, recipe_or_search
from deepgat.training.run import Run, train_once
from deepgat.training.search import Request

SETTINGS = (
    "num_layers", "hidden_channels", "heads", "dropout", "attention_dropout", "norm", "residual",
    "alpha", "theta", "sharpness", "label_hops",
)  # fmt: skip
"""Parameters that are settings of the system."""
TRAINING = (
    "lr", "weight_decay", "weight_decay_conv", "epochs", "patience", "monitor", "ema",
    "self_training",
)  # fmt: skip
"""Parameters that are training settings."""


class DeepGATClassifier(ClassifierMixin, BaseEstimator):
    """Classify the nodes of a graph, some of which are labelled.

    ``fit(X, y, edge_index=E)`` takes every node's features, labels with −1 for "unlabelled" as in
    :mod:`sklearn.semi_supervised`, and the edges; ``predict(X, edge_index=E)`` takes the same
    graph or another one. Where the estimator holds the graph, ``graph=(X, E)``, rows are *node
    numbers*: ``fit(nodes, y[nodes])`` trains on the whole graph with the labels of those nodes,
    ``predict(nodes)`` answers for those. That is what cross validation and grid search need:
    nodes are held out, the graph stays whole.

    Args:
        model, preset: the system, as ``--model`` and ``--preset`` of ``deepgat train``; None or
            "auto": the best of several recipes on the validation nodes, or the mean of those that
            are level with it. Settings without a system's name are those of ``deep``.
        quality, time_limit: of auto: "fast", "good" or "best"; seconds. None: "good", no limit.
        num_layers, hidden_channels, heads, dropout, attention_dropout, norm, residual, alpha,
            theta, sharpness, label_hops: settings of the system, as ``deepgat models NAME`` lists
            them; None: the system's own. One that the system does not have is refused.
        attention: the setting ``score`` of deepgat and gat; ``score`` is a method here.
        lr, weight_decay, weight_decay_conv, epochs, patience, monitor, ema, self_training: of the
            training, as in :class:`~deepgat.TrainSettings`; None: the system's own.
        metric: the validation score that picks the best epoch, in place of ``monitor``: a name of
            :data:`deepgat.analysis.METRICS`, such as "roc_auc" or "balanced_accuracy".
        class_weight: "balanced", or {class: weight} with 1 for classes left out, as in
            scikit-learn; None: all equal. Multiplied with ``sample_weight``.
        graph: (X, edge_index) or (X, edge_index, edge_weight), a PyG graph, or what
            ``load_graph`` returns. Shared by clones.
        validation_fraction: share of the labelled nodes kept for early stopping, by class, where
            ``fit`` is not told which.
        random_state: a whole number seeds weights, dropout and the validation nodes, like
            ``--seeds`` of the command line.
        device: auto, cpu or cuda.
        max_memory: the most that the process may take, as "4G" or in bytes; None: what the
            machine has. Where it is too small, layers are recomputed or the graph is trained in
            clusters, and a warning says so.

    Attributes:
        classes_: the classes, ascending; 0 … C−1 for an indicator matrix.
        n_features_in_: d.
        history_: {"loss", "val_loss", "val_f1"}: a number per epoch.
        n_iter_, best_epoch_: number of epochs, and the one whose weights are kept. Where auto
            keeps the mean of several models, these and history_ are those of the best.
        transduction_: the prediction for every node of the graph fitted.
        run_: the training run; its ``model`` is the network.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        preset: str | None = None,
        quality: str | None = None,
        time_limit: float | None = None,
        num_layers: int | None = None,
        hidden_channels: int | None = None,
        heads: int | None = None,
        dropout: float | None = None,
        attention_dropout: float | None = None,
        norm: str | None = None,
        residual: str | None = None,
        attention: str | None = None,
        alpha: float | None = None,
        theta: float | None = None,
        sharpness: float | None = None,
        label_hops: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        weight_decay_conv: float | None = None,
        epochs: int | None = None,
        patience: int | None = None,
        monitor: str | None = None,
        ema: float | None = None,
        self_training: float | None = None,
        metric: str | None = None,
        class_weight: Any = None,
        graph: Any = None,
        validation_fraction: float = 0.2,
        random_state: Any = None,
        device: str = "auto",
        max_memory: str | float | None = None,
    ) -> None:
        self.model = model
        self.preset = preset
        self.quality = quality
        self.time_limit = time_limit
        self.num_layers = num_layers
        self.hidden_channels = hidden_channels
        self.heads = heads
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.norm = norm
        self.residual = residual
        self.attention = attention
        self.alpha = alpha
        self.theta = theta
        self.sharpness = sharpness
        self.label_hops = label_hops
        self.lr = lr
        self.weight_decay = weight_decay
        self.weight_decay_conv = weight_decay_conv
        self.epochs = epochs
        self.patience = patience
        self.monitor = monitor
        self.ema = ema
        self.self_training = self_training
        self.metric = metric
        self.class_weight = class_weight
        self.graph = graph
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.max_memory = max_memory

    def fit(
        self,
        X: Any,
        y: Any,
        edge_index: Any = None,
        validation: Any = None,
        edge_weight: Any = None,
        sample_weight: Any = None,
    ) -> DeepGATClassifier:
        """Train on the labelled nodes.

        Args:
            X: [n, d] features of all nodes, dense or scipy's sparse; or node numbers [k] where
                the estimator holds the graph.
            y: [n] (or [k]) classes, numbers or texts, −1, NaN or None for "unlabelled"; or an
                indicator matrix [n, C] of independent labels, a row of −1 for "unlabelled".
            edge_index: [2, e] as in PyG, each direction named, or a sparse adjacency; left out:
                no edges.
            validation: mask [n], or numbers, of the rows for early stopping, in place of
                ``validation_fraction`` of them.
            edge_weight: [e] ≥ 0, multiplies the attention of each edge before it is normalised;
                the values of a sparse adjacency are its weights.
            sample_weight: [n] (or [k]) ≥ 0, how much each labelled row counts in the training
                loss; a row that weighs 0 is unlabelled. Validation rows count alike.
        """
        if y is None:
            raise UserError(
                "DeepGATClassifier requires y to be passed, but the target y is None: give the "
                "labels, with -1 for unlabelled nodes"
            )
        graph, rows = self._graph_of(X, edge_index, edge_weight, fitting=True)
        labels = read_labels(y)
        count = len(rows) if rows is not None else graph.num_nodes
        if len(labels.known) != count:
            raise UserError(f"y has {len(labels.known)} rows but X has {count}: expected one each")
        weight = None
        if sample_weight is not None:
            weight = torch.from_numpy(non_negative("sample_weight", sample_weight, count, "row"))
            labels = labels.only(weight > 0)
            weight = weight / max(weight.max().item(), np.finfo(float).tiny)  # in single precision
        seed = self._seed()
        held = validation_rows(labels, validation, self.validation_fraction, seed)
        rows = torch.arange(count) if rows is None else rows
        dataset = _dataset(graph, labels, rows, held)
        if weight is not None:
            dataset.graph[WEIGHT] = torch.zeros(graph.num_nodes)
            dataset.graph[WEIGHT][rows] = weight.float()
        with memory_bound(read_memory(self.max_memory)):
            run = self._trained(dataset, labels.classes, seed)
        self.classes_ = labels.classes
        self.n_features_in_ = graph.num_features
        self.run_, self._fitted_on = run, dataset
        history = run.fitted.history
        self.history_ = {
            name: [getattr(epoch, name) for epoch in history]
            for name in ("loss", "val_loss", "val_f1")
        }
        self.n_iter_, self.best_epoch_ = len(history), run.fitted.best.number
        self.transduction_ = self._classes_of(run.evaluation.logits[0])
        if run.fitted.stopped == "interrupted":  # a search over many fits must end too
            raise KeyboardInterrupt
        return self

    def predict(self, X: Any, edge_index: Any = None, edge_weight: Any = None) -> np.ndarray:
        """The class of every row [n], or 0/1 [n, C] after a fit on an indicator matrix.

        The labels that ``fit`` trained on are known where the graph is the one fitted; another
        graph has none.
        """
        return self._classes_of(self._logits(X, edge_index, edge_weight))

    def predict_proba(self, X: Any, edge_index: Any = None, edge_weight: Any = None) -> np.ndarray:
        """[n, C]: the probability of every class of ``classes_``, or of every label by itself.

        Calibrated by a temperature that the validation nodes chose. In single precision, which is
        what the network computes in.
        """
        logits = self._logits(X, edge_index, edge_weight)
        calibration = self.run_.evaluation.calibration
        return calibration.probabilities(logits, self.run_.card.multi_label).numpy()

    def score(
        self,
        X: Any,
        y: Any,
        edge_index: Any = None,
        sample_weight: Any = None,
        edge_weight: Any = None,
    ) -> float:
        """Accuracy on the rows that y labels; those with −1, NaN or None are left out.

        For an indicator matrix a row counts when all of it is right, as everywhere in
        scikit-learn.
        """
        labels = read_labels(y)
        known = labels.known.numpy()
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        predicted = self.predict(X, edge_index, edge_weight)[known]
        true = labels.codes[labels.known].numpy()
        true = true if labels.multi_label else labels.classes[true]
        return float(accuracy_score(true, predicted, sample_weight=weight))

    def _classes_of(self, logits: Tensor) -> np.ndarray:
        if self.run_.card.multi_label:
            return (logits > 0).numpy().astype(np.int64)
        return self.classes_[logits.argmax(1).numpy()]

    def _logits(self, X: Any, edge_index: Any, edge_weight: Any) -> Tensor:
        """[rows, C] on the CPU."""
        check_is_fitted(self, "run_")
        graph, rows = self._graph_of(X, edge_index, edge_weight, fitting=False)
        known = self._fitted_on.graph
        if _same_graph(graph, known):
            logits = self.run_.evaluation.logits[0]
        else:
            if edge_index is None and rows is None and known.edge_index.numel():
                raise UserError(
                    "X is not the graph fitted, which had edges: pass edge_index too (an empty "
                    "[2, 0] array for a graph without edges)"
                )
            told = edge_weight is not None or sp.issparse(edge_index)  # whose values are weights
            if known.edge_weight is not None and graph.edge_weight is None and told:
                graph.edge_weight = torch.ones(graph.edge_index.size(1))
            logits = Model(self.run_.model, self.run_.card).outputs(graph).logits.float().cpu()
        return logits if rows is None else logits[rows]

    def _graph_of(
        self, X: Any, edge_index: Any, edge_weight: Any, fitting: bool
    ) -> tuple[Data, Tensor | None]:
        """The graph, and the rows of it that X names where the estimator holds it."""
        if edge_weight is not None and edge_index is None:
            raise UserError(
                "edge_weight is given without edge_index: give both, or an estimator that holds "
                "graph=(X, edge_index, edge_weight)"
            )
        if self.graph is not None and edge_index is None:
            graph = read_graph(self.graph)
            return graph, read_nodes(X, graph.num_nodes)
        x = validate_data(
            self,
            as_scipy(X),
            reset=fitting,
            accept_sparse="csr",
            dtype=np.float32,
            ensure_min_samples=1,
        )
        graph = read_weighted_edges(edge_index, edge_weight, x.shape[0])
        if edge_index is None and not fitting and self._fitted_on.graph.num_nodes == x.shape[0]:
            known = self._fitted_on.graph  # compared as a whole before it is used
            graph = Data(edge_index=known.edge_index, **_edge_values(known))
        graph.x = as_tensor(x)
        return graph, None

    def _trained(self, dataset: NodeDataset, classes: np.ndarray, seed: int) -> Run:
        training = {**self._given(TRAINING), "device": self.device}
        if self.metric is not None:
            if self.monitor is not None:
                raise UserError("metric and monitor both pick the best epoch: give one of them")
            check_metric(self.metric)
            training["monitor"] = self.metric
        if self.class_weight is not None:
            training["class_weight"] = _by_place(self.class_weight, classes)
        settings = self._given(SETTINGS)
        settings |= {} if self.attention is None else {"score": self.attention}
        what = recipe_or_search(
            self.model,
            settings,
            training,
            preset=self.preset,
            quality=self.quality,
            time_limit=self.time_limit,
        )
        if isinstance(what, Request):
            return train_auto(dataset, what, seed)
        if find_system(what.system).sees_every_label:
            raise UserError("the oracle is shown every label and cannot predict: choose another")
        plan = drop_unsuited_self_training(what, dataset, training)
        return train_once(dataset, plan, seed)

    def _given(self, names: Sequence[str]) -> dict[str, Any]:
        """The parameters that are not None."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _seed(self) -> int:
        """A whole number is the seed itself; else one is drawn, as scikit-learn does."""
        state = self.random_state
        if isinstance(state, int | np.integer) and not isinstance(state, bool):
            return int(state)
        return int(check_random_state(state).randint(2**31 - 1))

    def __sklearn_clone__(self) -> DeepGATClassifier:
        """A clone shares the graph, which is never changed: many of them fit in memory."""
        bare = copy.copy(self)
        bare.graph = None
        made = BaseEstimator.__sklearn_clone__(bare)
        made.graph = self.graph
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags


def _by_place(class_weight: Any, classes: np.ndarray) -> Any:
    """{class: weight} as a weight per class; all else as it is."""
    if not isinstance(class_weight, Mapping):
        return class_weight
    known = classes.tolist()
    for name in class_weight:
        if name not in known:
            raise unknown_name("class of class_weight", str(name), map(str, known))
    return [class_weight.get(name, 1.0) for name in known]


def _dataset(graph: Data, labels: Labels, rows: Tensor, held: Tensor) -> NodeDataset:
    """The graph with the labels of its rows, those of ``held`` for validation."""
    if len(rows.unique()) != len(rows):
        raise UserError("X names a node twice: expected every node number at most once")
    n = graph.num_nodes
    y = torch.full((n, *labels.codes.shape[1:]), 0 if labels.multi_label else -1).to(labels.codes)
    y[rows] = labels.codes
    masks = {name: torch.zeros(n, dtype=torch.bool) for name in ("train", "val", "test")}
    masks["train"][rows] = labels.known & ~held
    masks["val"][rows] = labels.known & held
    data = Data(
        x=graph.x,
        edge_index=graph.edge_index,
        y=y,
        **_edge_values(graph),
        **{f"{name}_mask": mask for name, mask in masks.items()},
    )
    return NodeDataset(
        "array", "the graph", (data,), graph.num_features, len(labels.classes),
        labels.multi_label, "public",
    )  # fmt: skip


def _same_graph(a: Data, b: Data) -> bool:
    mine, theirs = _tensors(a), _tensors(b)
    return (
        a.x.shape == b.x.shape
        and mine.keys() == theirs.keys()
        and all(torch.equal(mine[name], theirs[name]) for name in mine)
    )


def _tensors(graph: Data) -> dict[str, Tensor]:
    x, edges = graph.x, {"edge_index": graph.edge_index, **_edge_values(graph)}
    if x.layout != torch.sparse_csr:
        return {"x": x, **edges}
    return {"row": x.crow_indices(), "column": x.col_indices(), "value": x.values(), **edges}


def _edge_values(graph: Data) -> dict[str, Tensor]:
    """What its edges have, of weights and features."""
    return {name: graph[name] for name in ("edge_weight", "edge_attr") if name in graph}
