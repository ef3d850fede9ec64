"""``deepgat predict --new`` and ``--nodes``: a few nodes instead of a whole graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from deepgat.cli.show import ERR, note
from deepgat.errors import UserError
from deepgat.model import Model
from deepgat.predictions import Predictions


class SomeNodes(NamedTuple):
    """The options that name the nodes."""

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


def predict_some(
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


def tell_some(asked: SomeNodes, found: Predictions, depth: int, out: str) -> None:
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
