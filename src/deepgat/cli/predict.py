"""``deepgat predict``."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor

from deepgat.analysis import micro_f1, set_coverage
from deepgat.cli import options as opt
from deepgat.cli.parsing import check_picture, parse_reading, tell_notes
from deepgat.cli.probabilities import (
    ClassConditional,
    Coverage,
    TestNodes,
    always_included,
    check_sets,
)
from deepgat.cli.show import ERR, note, percent
from deepgat.data import NodeDataset
from deepgat.data.names import Names
from deepgat.errors import UserError
from deepgat.files import check_can_write, write_whole
from deepgat.model import Model
from deepgat.model_folder import harmless, label_texts
from deepgat.predictions import Predictions


class SomeNodes(NamedTuple):
    """The options ``--new`` and ``--nodes``: a few nodes instead of a whole graph."""

    new: Path | None
    new_edges: Path | None
    nodes: str | None
    hops: int | None

    def __bool__(self) -> bool:
        return self.new is not None or self.nodes is not None

    def check(self, picture: Path | None) -> None:
        """Refuse options that do not go together."""
        if self.new is not None and self.nodes is not None:
            raise UserError("--new and --nodes name different nodes: give one of them")
        if self.new is None and self.new_edges is not None:
            raise UserError("--new-edges needs --new: the table of new nodes")
        if self.hops is not None and not self:
            raise UserError("--hops needs --new or --nodes: a whole graph is not cut")
        if picture is not None and self:
            raise UserError("--reliability needs labels of a whole graph: leave --new and --nodes")


def predict(
    folder: opt.ModelFolder,
    graph: Annotated[
        str | None,
        typer.Argument(
            help="The graph to predict for; left out: the training graph, from the model's folder "
            "if it was trained with --keep-graph."
        ),
    ] = None,
    out: Annotated[
        str, typer.Option("--out", "-o", help="The CSV file to write; - is standard output.")
    ] = "-",
    split: Annotated[
        str | None, typer.Option(help="Which of the graph's labels are known; as in train.")
    ] = None,
    early_exit: Annotated[
        bool,
        typer.Option("--early-exit", help="Take each node's class from the first sure layer."),
    ] = False,
    tolerance: Annotated[
        float, typer.Option(help="Share of validation accuracy that --early-exit may lose.")
    ] = 0.0,
    coverage: Coverage = None,
    class_conditional: ClassConditional = False,
    abstain: Annotated[
        float | None,
        typer.Option(
            metavar="CONFIDENCE", help="Leave the label of nodes of a lower confidence empty."
        ),
    ] = None,
    reliability_figure: Annotated[
        Path | None,
        typer.Option(
            "--reliability",
            metavar="FILE.png",
            help="Draw confidence against accuracy, before and after calibration.",
        ),
    ] = None,
    new: Annotated[
        Path | None,
        typer.Option(
            "--new",
            metavar="FILE",
            help="Predict new nodes instead: a table of them, with the columns of nodes.csv.",
        ),
    ] = None,
    new_edges: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The edges of new nodes, to the graph's nodes or to each other.",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="ID,ID,…", help="Predict only these nodes of the graph."),
    ] = None,
    hops: Annotated[
        int | None,
        typer.Option(
            help="With --new or --nodes: leave out nodes that are further away; an approximation."
        ),
    ] = None,
    read: opt.Read = None,
    quiet: opt.Quiet = False,
) -> None:
    """Predict the class of every node, of this graph or another, or of new nodes.

    Writes a line per node: its id, label and calibrated confidence; with --coverage also a set of
    classes. The labels of the graph's training nodes are known to the model, all others are not.

    --new and --nodes read only the part of the graph that these nodes depend on, and predict what
    the whole graph would. A model that was trained with --keep-graph has the graph with it, and
    needs no other files. Any other model reads the graph again from where it was.

    Example: deepgat train cora --out model/ && deepgat predict model/ cora -o labels.csv

    Example: deepgat predict model/ --new new-nodes.csv --new-edges new-edges.csv
    Example: deepgat predict model/ --coverage 0.9 --abstain 0.8 -o labels.csv
    """
    if out != "-":
        check_can_write(Path(out))
    check_picture(reliability_figure)
    some = SomeNodes(new, new_edges, nodes, hops)
    some.check(reliability_figure)
    check_sets(coverage, class_conditional)
    model = Model.load(folder)
    if some:
        how: dict[str, Any] = {
            "early_exit": model.exit_policy(tolerance) if early_exit else None,
            "coverage": coverage,
            "class_conditional": class_conditional,
            "abstain": abstain,
        }
        ids, few = _predict_some(model, some, graph, split, parse_reading(read), how, quiet)
        _write(out, _csv([few], Names(ids, model.card.class_names)))
        if not quiet:
            _tell_some(some, few, model.network.num_layers, out)
        return
    data = model.data_for(graph, split, **parse_reading(read))
    if graph is not None or split is not None or read:
        tell_notes(data)
    policy = model.exit_policy(tolerance) if early_exit else None
    found = [
        model.predict(
            each, policy, coverage=coverage, class_conditional=class_conditional, abstain=abstain
        )
        for each in data.graphs
    ]
    _write(out, _csv(found, Names(data.node_ids, model.card.class_names)))
    if not quiet:
        _tell(model, data, found, out)
        if coverage is not None:
            names = Names(classes=model.card.class_names)
            if note := always_included(model.calibration, coverage, class_conditional, names):
                ERR.print(note, soft_wrap=True, markup=False)
    if reliability_figure is not None:
        _draw(reliability_figure, model, data)


def _predict_some(
    model: Model,
    asked: SomeNodes,
    graph: str | None,
    split: str | None,
    reading: dict[str, Any],
    how: dict[str, Any],
    quiet: bool,
) -> tuple[list[str], Predictions]:
    """(ids, predictions) of the nodes that were asked for; ``how``: options of ``predict``."""
    of_graph = reading if asked.new is None else {}
    if graph is not None or split is not None or of_graph:
        model = model.with_graph(model.data_for(graph, split, **of_graph))
    if asked.nodes is not None:
        names = [part.strip() for part in asked.nodes.split(",") if part.strip()]
        return names, model.predict(nodes=names, hops=asked.hops, **how)
    assert asked.new is not None
    new = model.read_new(asked.new, asked.new_edges, **reading)
    reason = model.network.graph_wide
    notes = [*new.notes, f"the whole graph is computed, since {reason}"] if reason else new.notes
    for text in () if quiet else notes:
        note(text)
    return list(new.ids), model.predict_new(new, hops=asked.hops, **how)


def _tell_some(asked: SomeNodes, found: Predictions, depth: int, out: str) -> None:
    """Say how many nodes were predicted, and how."""
    count = len(found.labels)
    nodes = "node" if count == 1 else "nodes"
    parts = [f"{count:,} {'new ' if asked.new is not None else ''}{nodes}"]
    if asked.hops is not None:
        parts.append(f"the graph cut off after {asked.hops} hop{'s' if asked.hops != 1 else ''}")
    if found.layers is not None:
        parts.append(f"{found.layers.double().mean():.2f} of {depth} layers used on average")
    where = "" if out == "-" else f", written to {out}"
    ERR.print("; ".join(parts) + where, soft_wrap=True, markup=False)


def _write(out: str, text: str) -> None:
    if out == "-":
        typer.echo(text, nl=False)
    else:
        write_whole(Path(out), text)


def _csv(found: list[Predictions], names: Names) -> str:
    """A line per node; the column graph where there are several, layer where nodes stop early,
    set where each has a set of classes, joined by semicolons.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    several = ["graph"] if len(found) > 1 else []
    stops = [] if found[0].layers is None else ["layer"]
    with_sets = [] if found[0].sets is None else ["set"]
    writer.writerow([*several, "node", "label", "confidence", *stops, *with_sets])
    for number, each in enumerate(found):
        sure, labels = each.confidence.tolist(), label_texts(each.labels, names.label)
        sets = [] if each.sets is None else label_texts(each.sets, names.label)
        for node, label in enumerate(labels):
            row = [harmless(names.node(node)), harmless(label), f"{sure[node]:.6g}"]
            layer = [] if each.layers is None else [int(each.layers[node])]
            chosen = [harmless(sets[node])] if sets else []
            writer.writerow([*([number] if several else []), *row, *layer, *chosen])
    return file.getvalue()


def _held_out(data: NodeDataset, found: list[Predictions]) -> tuple[Tensor, Tensor, Tensor]:
    """(nodes, probabilities, labels) of the nodes whose labels chose nothing: the test nodes."""
    masks = [graph.test_mask for graph in data.graphs]
    shares = torch.cat([e.probabilities[m] for e, m in zip(found, masks, strict=True)])
    y = torch.cat([graph.y[mask] for graph, mask in zip(data.graphs, masks, strict=True)])
    return torch.cat(masks), shares, y


def _tell(model: Model, data: NodeDataset, found: list[Predictions], out: str) -> None:
    mask, shares, y = _held_out(data, found)
    nodes = sum(len(each.labels) for each in found)
    parts = [f"{nodes:,} nodes of {data.title}"]
    known = _of_the_task(model, y)
    if known:
        parts.append(f"{percent(float(micro_f1(shares, y)))}% of the test nodes right")
    elif model.drawn_anew(data):
        parts.append("test nodes not scored, because the graph has changed since training")
    answered = torch.cat([each.labels for each in found if each.labels.dim() == 1] or [y])
    silent = 0 if model.card.multi_label else int((answered < 0).sum())
    if silent:
        kept = answered[mask] >= 0 if known else torch.zeros(0)
        told = f"{silent:,} nodes get no label"
        if bool(kept.any()):
            share = float((answered[mask] == y)[kept].double().mean())
            told += f", {percent(share)}% of the other test nodes right"
        parts.append(told)
    sets = [each.sets for each in found if each.sets is not None]
    if sets:
        every = torch.cat(sets)
        told = f"sets of {every.sum(1).double().mean():.2f} classes on average"
        if known:
            share = set_coverage(every[mask], y).coverage
            told += f", which hold the class of {percent(share)}% of the test nodes"
        parts.append(told)
    stopped = [each.layers for each in found if each.layers is not None]
    if stopped:
        layers = torch.cat(stopped)
        used = layers[mask] if mask.any() else layers
        depth = model.network.num_layers
        computed = max(each.computed or depth for each in found)
        parts.append(
            f"{used.double().mean():.2f} of {depth} layers used on average, {computed} computed"
        )
    known = any(bool(graph.train_mask.any()) for graph in data.graphs)
    if model.network.label_hops and not known:
        parts.append("no label of it is known, though the model was trained to read neighbours'")
    where = "" if out == "-" else f", written to {out}"
    ERR.print("; ".join(parts) + where, soft_wrap=True, markup=False)


def _of_the_task(model: Model, y: Tensor) -> bool:
    """Whether there are labels, one class per node, of the classes that the model predicts."""
    return bool(len(y)) and y.dim() == 1 and int(y.max()) < model.card.num_classes


def _draw(path: Path, model: Model, data: NodeDataset) -> None:
    from deepgat.figures import reliability_figure, save_figure  # here: it loads a plotting library

    logits = [model.outputs(graph).logits.float().cpu() for graph in data.graphs]
    nodes = TestNodes.of(data, logits, model.calibration)
    if not len(nodes):
        raise UserError(f"{data.title} has no test nodes: --reliability needs some")
    curves = nodes.curves()
    save_figure(reliability_figure(curves, f"Test nodes of {data.title}"), path)
    errors = ", ".join(f"{name} {each.error:.3f}" for name, each in curves.items())
    ERR.print(f"expected calibration error: {errors}; drawn in {path}", soft_wrap=True)
