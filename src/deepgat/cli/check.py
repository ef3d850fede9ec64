"""``deepgat check``."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from deepgat.analysis.graph_check import inspect_graph
from deepgat.cli import options as opt
from deepgat.cli.parsing import parse_reading
from deepgat.cli.show import OUT, as_options, echo_json, print_table
from deepgat.data import OwnGraph, ReadOptions, is_path, load_graph, read_graph
from deepgat.data.tables.convert import graph_from_pyg
from deepgat.errors import printable

SHOWN_CLASSES = 12


def check(
    graph: Annotated[
        str, typer.Argument(help="A folder or file of yours, or a name of deepgat datasets.")
    ],
    read: opt.Read = None,
    json: opt.Json = False,
) -> None:
    """Look at a graph before training on it: what is in it, and what looks wrong.

    Example: deepgat check my-graph/ --read text=abstract
    """
    words = [graph, *(word for option in read or () for word in ("--read", option))]
    report = inspect_graph(_read(graph, read), shlex.join(words))
    if json:
        echo_json(report)
        return
    print_table(report["title"], [], [[name, text] for name, text in _facts(report).items()])
    for title, sentences in (
        ("Done while reading:", report["notes"]),
        ("Likely problems:", report["problems"] or ["None found."]),
    ):
        if sentences:
            OUT.print(title)
            for sentence in sentences:
                OUT.print(f"  • {printable(as_options(sentence))}", soft_wrap=True)
    OUT.print("To train:")
    OUT.print(f"  {report['advice']['command']}", soft_wrap=True)
    OUT.print(f"  ({report['advice']['why']})", soft_wrap=True)
    if report["advice"]["uneven"]:
        OUT.print(printable(report["advice"]["uneven"]), soft_wrap=True)


def _read(graph: str, read: list[str] | None) -> OwnGraph:
    options = parse_reading(read)
    if is_path(graph):
        return read_graph(graph, ReadOptions.of(options))
    data = load_graph(graph, **options)
    found = graph_from_pyg(data.graph, ReadOptions(undirected=False))
    return OwnGraph(**{**vars(found), "title": data.title})


def _facts(report: dict[str, Any]) -> dict[str, str]:
    classes = sorted(report["classes"].items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{name[:30]} {size:,}" for name, size in classes[:SHOWN_CLASSES])
    if len(classes) > SHOWN_CLASSES:
        listed += f", and {len(classes) - SHOWN_CLASSES} more"
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in report["feature_columns"].items())
    weights = " (weighted)" if report["edge_weights"] else ""
    more = f", features {', '.join(report['edge_features'])}" if report["edge_features"] else ""
    split = ", ".join(f"{part} {size:,}" for part, size in (report["split"] or {}).items())
    plain, adjusted = (
        "–" if value != value else f"{value:.2f}"
        for value in (report["homophily_edge"], report["homophily_adjusted"])
    )
    hubs = ", ".join(f"{name[:30]} {degree:,}" for name, degree in report["hubs"])
    largest = f"{report['largest_component']:.0%}"
    return {
        "nodes": f"{report['nodes']:,}",
        "edges": f"{report['edges']:,}{weights}{more}",
        "features": f"{report['features']:,}" + (f" from columns: {kinds}" if kinds else ""),
        "labels per node" if report["multi_label"] else "classes": f"{len(classes)}: {listed}",
        "unlabelled": f"{report['unlabelled']:,}",
        "split": split or "none",
        "homophily": f"{plain} of edges, {adjusted} adjusted for chance",
        "degree": f"{report['mean_degree']:.1f} on average; highest: {hubs}",
        "components": f"{report['components']:,}, the largest with {largest}",
        "isolated": f"{report['isolated']:,}",
        "merged duplicates": f"{report['duplicate_edges']:,}",
        "self-loops": f"{report['self_loops']:,}",
        "given one way": f"{report['one_way_edges']:,}",
    }
