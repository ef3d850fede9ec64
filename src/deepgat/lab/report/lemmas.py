"""The lemma checks as a table and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from matplotlib.figure import Figure

from deepgat.figures.style import COLORS, house_style, legend_below
from deepgat.lab.paper.lemmas import LemmaCheck
from deepgat.lab.report.layout import Table


class Checked(Protocol):
    """One lemma on one graph, as :mod:`deepgat.lab.paper.lemma_graphs` makes it."""

    @property
    def lemma(self) -> str: ...
    @property
    def graph(self) -> str: ...
    @property
    def regular(self) -> bool: ...
    @property
    def check(self) -> LemmaCheck: ...


def lemma_table(checks: Sequence[Checked]) -> Table:
    """The share of empirical means and covariances inside the band of each form."""
    rows = []
    for item in checks:
        shares = item.check.shares_inside()
        rows.append(
            [
                item.lemma,
                item.graph,
                *(
                    f"{100 * shares[f'{form}_{what}']:.1f}"
                    for form in ("exact", "path_count")
                    for what in ("mean", "covariance")
                ),
                "yes" if item.check.exact_holds else "no",
                "yes" if item.check.path_count_holds else "no",
            ]
        )
    columns = ["lemma", "graph", "mean %", "cov. %", "mean % (paths)", "cov. % (paths)",
               "holds", "holds (paths)"]  # fmt: skip
    first = checks[0].check
    notes = [
        f"Share of the empirical means and covariances of h^l, l = 1 … {len(first.concentration)}, "
        f"of {len(first.nodes)} nodes, inside the band where {first.draws:,} draws must lie, all "
        f"together with probability {first.level:.0%}, if the formula is right. “(paths)”: the "
        "path-count form that the paper writes, which is exact only on regular graphs."
    ]
    return Table("lemmas", "The lemmas against draws", columns, rows, notes)


def extreme_nodes(check: LemmaCheck) -> dict[str, int]:
    """The places of two nodes among those looked at: with the fewest and the most neighbours."""
    alone = check.degree <= 1  # whose covariance never changes
    fewest = check.degree.masked_fill(alone, int(check.degree.max()) + 1).argmin()
    most = check.degree.argmax()
    if check.degree[fewest] == check.degree[most]:
        return {"every node": int(most)}
    return {"fewest neighbours": int(fewest), "most neighbours": int(most)}


def lemma_figures(checks: Sequence[Checked]) -> dict[str, Figure]:
    """How the covariance shrinks with l: drawn, by the exact weights, and by path counts."""
    figure = Figure(figsize=(3.4 * len(checks), 3.8), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(checks), squeeze=False, sharey=True)[0]
    for axes, item in zip(panels, checks, strict=True):
        check = item.check
        layers = range(1, len(check.concentration) + 1)
        for index, (name, node) in enumerate(extreme_nodes(check).items()):
            color = COLORS[index]
            spread = check.empirical.covariance[:, node].diagonal(dim1=-2, dim2=-1).sum(-1)
            exact = check.exact.covariance[:, node].diagonal(dim1=-2, dim2=-1).sum(-1)
            paths = check.path_count.covariance[:, node].diagonal(dim1=-2, dim2=-1).sum(-1)
            axes.plot(layers, exact, color=color, label=f"{name}: exact")
            axes.plot(layers, paths, color=color, linestyle=":", label=f"{name}: path counts")
            axes.plot(layers, spread, color=color, linestyle="", marker="o", markerfacecolor="none",
                      label=f"{name}: drawn")  # fmt: skip
        axes.set_yscale("log")
        axes.set_xlabel("layer l")
        axes.set_title(f"{item.lemma}, {item.graph}", loc="left", fontsize=9)
        house_style(axes)
    panels[0].set_ylabel("trace of the covariance of h^l")
    legend_below(figure)
    return {"lemmas": figure}
