"""A model that answers questions: predictions, explanations, its page."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepgat import __version__
from deepgat.data import FeaturePlan, NodeDataset
from deepgat.data.grown_graph import GrownGraph
from deepgat.data.names import Names
from deepgat.errors import UserError
from deepgat.model import Model
from deepgat.model_inputs import kept_dataset
from deepgat.models import LayerOutputs
from deepgat.nn.conv_output import Attention
from deepgat.predictions import Predictions
from deepgat.serving.bodies import ExplainRequest, Options, PredictNewRequest, PredictRequest
from deepgat.serving.problems import Problem, invalid, unknown_node
from deepgat.training.device import choose_device
from deepgat.training.receptive_field import field_outputs

KEPT_BYTES = 2**29
"""Attention of up to so many bytes is kept for later explanations."""

Answer = dict[str, Any]


class Served:
    """A model, its training graph, and what the model computes for that graph.

    Threads may call the methods at the same time: the model and the graph do not change.

    Args:
        model: the model.
        on_pass: called with a route's name before every run of the network for it.
    """

    def __init__(self, model: Model, on_pass: Callable[[str], None] = lambda route: None) -> None:
        self.model, self.card, self.on_pass = _with_graph(model), model.card, on_pass
        self.base = self.model.base
        names = Names(classes=self.card.class_names)
        self.classes = [names.label(number) for number in range(self.card.num_classes)]
        self._explained: LayerOutputs | None = None
        self._explaining = threading.Lock()
        # Operators learn from one global value which chunk of a graph they see.
        chunked = self.card.training.chunk > 0
        self._turns: AbstractContextManager[Any] = threading.Lock() if chunked else nullcontext()
        model.network.to(choose_device(self.card.training.device)).eval()
        everybody = np.arange(self.base.num_nodes)
        self._logits = self._run(GrownGraph(self.base), everybody, "start")
        self._found = model.predictions_of(self._logits)

    @staticmethod
    def load(folder: str | os.PathLike[str], on_pass: Callable[[str], None]) -> Served:
        return Served(Model.load(folder), on_pass)

    def predict(self, request: PredictRequest) -> Answer:
        """Nodes of the graph: predicted once, when the service started."""
        numbers = [self._find(text, f"nodes[{i}]") for i, text in enumerate(request.nodes)]
        rows = torch.tensor(numbers)
        found = replace(
            self._found,
            labels=self._found.labels[rows],
            probabilities=self._found.probabilities[rows],
            sets=self._sets(self._logits[rows], request),
        )
        return {"predictions": self._records(request.nodes, found, request), "notes": []}

    def predict_new(self, request: PredictNewRequest) -> Answer:
        """New nodes, by a run of the network on their receptive field.

        Requests are not merged into one run: the new neighbours of one request would change what
        the network computes for another.
        """
        try:
            new = self.model.read_new(request.nodes, request.edges)
            grown = GrownGraph(self.base, new)
            targets = np.arange(self.base.num_nodes, grown.num_nodes)
            logits = self._run(grown, targets, "/v1/predict-new")
        except UserError as error:
            raise invalid(str(error), _field(str(error))) from error
        found = self.model.predictions_of(logits)
        found = replace(found, sets=self._sets(logits, request))
        return {
            "predictions": self._records(new.ids, found, request),
            "notes": list(new.notes),
        }

    def explain_all(self, requests: Sequence[ExplainRequest]) -> list[Answer | Exception]:
        """An explanation, or what is wrong, for each; one run of the network serves them all."""
        try:
            outputs = self._attention()
        except UserError as error:
            return [Problem(409, "not_supported", str(error))] * len(requests)
        answers: list[Answer | Exception] = []
        for request in requests:
            try:
                answers.append(self._explain(request, outputs))
            except Problem as problem:
                answers.append(problem)
        return answers

    def info(self) -> Answer:
        return {
            "system": self.card.system,
            "layers": self.model.network.num_layers,
            "classes": self.classes,
            "several_labels": self.card.multi_label,
            "features": self.card.num_features,
            "columns": [item.name for item in self._columns],
            "nodes": self.base.num_nodes,
            "new_nodes": all(item.kind != "structure" for item in self._columns),
            "version": __version__,
        }

    def page(self) -> str:
        """The page that ``deepgat view`` writes."""
        from deepgat.view import page  # here: it is rarely asked for

        self.on_pass("/")
        with self._turns:
            return page(self.model, self.data)

    @cached_property
    def data(self) -> NodeDataset:
        """The whole graph in memory."""
        return kept_dataset(self.base, self.card)

    @property
    def _columns(self) -> Iterable[Any]:
        return FeaturePlan.of(self.card.feature_plan).columns

    def _run(self, graph: GrownGraph, targets: np.ndarray, route: str) -> Tensor:
        self.on_pass(route)
        chunk = self.card.training.chunk
        with self._turns:
            logits = field_outputs(self.model.network, graph, targets, chunk=chunk).logits
        if not bool(logits.isfinite().all()):
            raise UserError(
                "the model's outputs are not finite numbers: features may be too large, or the "
                "model's weights damaged"
            )
        return logits.float().cpu()

    def _find(self, text: str, field: str) -> int:
        number = self.base.find(text)
        if number < 0:
            raise unknown_node(text, field)
        return number

    def _sets(self, logits: Tensor, request: Options) -> Tensor | None:
        if request.coverage is None:
            return None
        try:
            return self.model.predictions_of(logits, request.coverage).sets
        except UserError as error:
            raise invalid(f"coverage: {error}", "coverage") from error

    def _records(self, names: Sequence[str], found: Predictions, asked: Options) -> list[Answer]:
        classes, several = self.classes, self.card.multi_label
        sets = None if found.sets is None else found.sets.tolist()
        records = []
        for i, (label, shares, sure) in enumerate(
            zip(
                found.labels.tolist(),
                found.probabilities.tolist(),
                found.confidence.tolist(),
                strict=True,
            )
        ):
            record: Answer = {
                "node": names[i],
                "label": None if several else classes[label],
                "confidence": sure,
            }
            if several:
                record["labels"] = _chosen(classes, label)
            if asked.probabilities:
                record["probabilities"] = dict(zip(classes, shares, strict=True))
            if sets is not None:
                record["set"] = _chosen(classes, sets[i])
            records.append(record)
        return records

    def _explain(self, request: ExplainRequest, outputs: LayerOutputs) -> Answer:
        node = self._find(request.node, "node")
        try:
            found = self.model.explanation_of(node, outputs, self.data)
        except UserError as error:
            raise Problem(409, "not_supported", str(error)) from error
        order = found.attention.mean(0)[1:].argsort(descending=True)[: request.top] + 1
        last = found.layers[max(found.layers)]
        return {
            "node": request.node,
            "label": None if found.label is None else self.classes[found.label],
            "layers": {
                str(layer): {
                    "label": self.classes[int(shares[0].argmax())],
                    "probabilities": dict(zip(self.classes, shares[0].tolist(), strict=True)),
                }
                for layer, shares in found.layers.items()
            },
            "neighbours": [
                {
                    "node": self.base.name(int(found.neighbors[place])),
                    "label": self.classes[int(last[place].argmax())],
                    "attention": found.attention[:, place].tolist(),
                }
                for place in [0, *order.tolist()]
            ],
            "more_neighbours": len(found.neighbors) - 1 - len(order),
        }

    def _attention(self) -> LayerOutputs:
        """Every layer's predictions and attention, heads averaged; computed once if it fits."""
        with self._explaining:
            if self._explained is not None:
                return self._explained
            self.on_pass("/v1/explain")
            with self._turns:
                found = self.model.outputs(self.data, with_attention=True)
            attention = [
                Attention(each.edge_index.cpu(), each.weight.float().mean(1, keepdim=True).cpu())
                for each in found.attention
            ]
            logits = {layer: each.float().cpu() for layer, each in found.layer_logits.items()}
            outputs = LayerOutputs(found.logits.float().cpu(), logits, [], attention)
            tensors = [*logits.values(), *(each.weight for each in attention)]
            if sum(each.nbytes for each in tensors) <= KEPT_BYTES:
                self._explained = outputs
            return outputs


def _with_graph(model: Model) -> Model:
    """The model with its training graph at hand: that in its folder, or where it was."""
    if model.kept is not None:
        return model
    data = model.training_data
    if len(data.graphs) != 1:
        raise UserError(
            f"{data.title} has {len(data.graphs)} graphs: serve a model that was trained on one"
        )
    return model.with_graph(data)


def _chosen(classes: Sequence[str], chosen: Sequence[bool]) -> list[str]:
    return [name for name, is_in in zip(classes, chosen, strict=True) if is_in]


def _field(message: str) -> str | None:
    """The part of a request that an error of reading new nodes is about.

    "nodes, row 2, column 'age': …" → "nodes[1].age".
    """
    found = re.match(r"(nodes|edges)\b(?:, row (\d+), column '([^']{1,60})')?", message)
    if found is None:
        return "edges" if "edges have" in message or "weights of the edges" in message else None
    table, row, column = found.groups()
    return table if row is None else f"{table}[{int(row) - 1}].{column}"
