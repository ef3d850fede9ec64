"""``deepgat reproduce publications``, ``peers``, ``contenders`` and ``study``: beyond the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from deepgat.lab.commands.pages import show_page
from deepgat.lab.experiments import Outcome, Record, RunSpec
from deepgat.lab.paper import peers, study

DEPTH_TARGETS = {
    peers.PEERS: (peers.peer_specs, peers.OURS),
    peers.CONTEST: (peers.contender_specs, peers.OURS),
    study.STUDY: (study.study_specs, study.BASE),
}
"""Target → what makes its runs, and the system that the others are compared with."""
TARGETS = (peers.PUBLICATIONS, *DEPTH_TARGETS)


def reproduce_peers(
    target: str, grid: dict[str, Any], obtain: Callable[[list[RunSpec]], Outcome], out: Path
) -> tuple[list[RunSpec], Outcome]:
    """Make or look up the runs of a target beyond the paper, and show its page."""
    from deepgat.lab.report import peers as report
    from deepgat.lab.report.targets import Page

    if target == peers.PUBLICATIONS:
        settings = peers.publications(grid["datasets"])
        specs = [spec for setting in settings for spec in setting.specs]
        outcome = obtain(specs)
        rows = [
            report.Printed(
                setting.name,
                setting.published.score,
                setting.published.spread,
                setting.published.source,
                _finished(setting.specs, outcome),
            )
            for setting in settings
        ]
        show_page(Page(target, [report.publication_table(rows)]), out)
        return specs, outcome
    make, base = DEPTH_TARGETS[target]
    labelled = make(**grid)
    specs = list(dict.fromkeys(spec for own in labelled.values() for spec in own))
    outcome = obtain(specs)
    found = {label: _finished(own, outcome) for label, own in labelled.items()}
    lost = {label: _lost(own, outcome) for label, own in labelled.items()}
    tables = [
        *report.system_tables(found, target, "test", lost),
        *report.pair_tables(found, target, base),
        *report.system_tables(found, target, "val", lost),
        *report.overview_tables(found, target, "test", lost),
        *report.overview_tables(found, target, "val", lost),
    ]
    figures = {**report.system_figures(found, target), **report.overview_figure(found, target)}
    page = Page(target, tables, figures)
    show_page(page, out, grid["quick"])
    return specs, outcome


def _lost(specs: Iterable[RunSpec], outcome: Outcome) -> set[tuple[str, int]]:
    """(dataset, depth) of which every run diverged."""
    groups: dict[tuple[str, int], list[str]] = {}
    for spec in specs:
        groups.setdefault((spec.data.dataset, spec.model.layers), []).append(spec.signature)
    return {place for place, names in groups.items() if outcome.diverged.keys() >= set(names)}


def _finished(specs: Iterable[RunSpec], outcome: Outcome) -> list[Record]:
    return [outcome.records[s.signature] for s in specs if s.signature in outcome.records]
