"""The other systems: which runs they need, and what the tables and figures make of them."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy import stats

from deepgat.errors import UserError
from deepgat.lab.experiments import read_records
from deepgat.lab.paper import peers
from deepgat.lab.report import systems_by_depth as report
from deepgat.lab.report.scores import paired
from deepgat.lab.report.table import Sourced
from deepgat.training.config_file import Published, shipped
from deepgat.training.portfolio import PORTFOLIO

from jobs import graded_record

RESULTS = Path(__file__).parents[2] / "results"
TOLD = ("settings", "training", "seed", "data", "versions", "hardware", "wall_seconds")
"""What a stored record says of how it was made; ``versions`` has the commit."""


def test_every_publication_names_its_repetitions():
    found = {item.name: item for item in peers.publications()}
    assert set(found) <= set(shipped())
    gcnii = found["gcnii-cora"]
    assert [spec.seed for spec in gcnii.specs] == list(range(10))
    assert {spec.layers for spec in gcnii.specs} == {64}
    texas = found["g2-texas"]
    assert [spec.data.split for spec in texas.specs] == [f"stored:{k}" for k in range(10)]
    assert all(0 < item.published.score < 100 for item in found.values())
    assert [item.name for item in peers.publications(["texas"])] == ["g2-texas"]
    with pytest.raises(UserError, match=r"no shipped setting .* on digits"):
        peers.publications(["digits"])


def test_peers_differ_from_depth_to_depth_in_the_depth_alone():
    labelled = peers.peer_specs(datasets=["cora", "cs", "texas"], layers=[4, 2])
    assert list(labelled) == list(peers.ALL)
    for label, specs in labelled.items():
        choices = len(peers.ALL[label][1])
        cora = [spec for spec in specs if spec.data.dataset == "cora"]
        own = cora[::choices]
        assert [(s.layers, s.seed) for s in own] == [(d, k) for d in (2, 4) for k in range(3)]
        assert len(cora) == choices * len(own)
        assert {s.data.split for s in specs if s.data.dataset == "cs"} == {
            f"random:{k}:20/30" for k in range(3)
        }
        there = 1 if label == peers.G2 else choices  # its setting for that graph is one
        assert sum(s.data.dataset == "texas" for s in specs) == 2 * 10 * there
    gcnii = [s for s in labelled["GCNII"] if s.data.dataset == "cora"]
    assert {s.training.weight_decay_conv for s in gcnii} == {0.01}
    assert len({s for specs in labelled.values() for s in specs}) == sum(
        map(len, labelled.values())
    )
    g2 = {s.data.dataset: s for s in labelled[peers.G2]}
    assert (g2["texas"].settings.hidden_channels, g2["cora"].settings.hidden_channels) == (256, 128)
    assert g2["texas"].training == replace(peers.read_config("g2-texas").recipe().training, seed=0)
    few = peers.peer_specs(datasets=["cora"], layers=[2], epochs=7)
    assert {spec.training.epochs for specs in few.values() for spec in specs} == {7}
    with pytest.raises(UserError, match="epochs is 0: expected 1 or more"):
        peers.peer_specs(epochs=0)
    with pytest.raises(UserError, match="splits is 0"):
        peers.peer_specs(splits=0)
    assert list(peers.peer_specs(systems=["G2-GraphSAGE", "gcnii"])) == ["GCNII", "G²-GraphSAGE"]
    told = r"unknown system 'gcnn': did you mean 'gcn'.*; deepgat, deep; "
    with pytest.raises(UserError, match=told):
        peers.peer_specs(systems=["gcnn"])


def test_prenorm_has_the_recipe_of_auto_and_the_metric_of_the_data():
    """Beside the depth, what ``auto`` trains as wide-deep on Minesweeper."""
    grid = {"datasets": ["minesweeper", "hops-4"], "splits": 1, "systems": ["prenorm (ours)"]}
    mines, hops = peers.peer_specs(layers=[16], **grid)[peers.PRENORM]
    looks = SimpleNamespace(uneven_scales=False)  # on both graphs
    for spec, training in ((mines, {"monitor": "roc_auc"}), (hops, {})):
        wide = PORTFOLIO["wide-deep"].recipe(looks, training)
        assert (spec.system, spec.settings, spec.training) == wide
    deeper = peers.peer_specs(layers=[64], **grid)[peers.PRENORM][0]
    assert deeper.settings == replace(mines.settings, num_layers=64)
    assert deeper.training == mines.training


def test_the_training_is_chosen_on_validation_nodes():
    specs = peers.peer_specs(datasets=["cora"], layers=[2], seeds=[0], systems=["gcn"])["GCN"]
    own, other = (graded_record(spec) for spec in specs)
    for record, val, test in ((own, 0.7, 0.9), (other, 0.8, 0.6)):
        record["micro_f1"] = {**record["micro_f1"], "val": val, "test": test}
    (table,) = report.system_tables({"GCN": [own, other]}, "peers")
    assert str(table.rows[0][1]) == "60.0"


def test_the_published_metric_chooses_and_has_a_table_of_its_own():
    grid = {"datasets": ["minesweeper"], "systems": ["gcn"], "splits": 1}
    specs = peers.peer_specs(layers=[2, 4], **grid)["GCN"]
    assert {spec.training.monitor for spec in specs} == {"roc_auc"}
    records = [graded_record(spec) for spec in specs]
    for record, val, test in zip(records, (0.7, 0.8) * 2, (0.9, 0.6, 0.9, 0.65), strict=True):
        record["micro_f1"] = {**record["micro_f1"], "val": 1 - val, "test": 0.5}
        record["metrics"] = {"roc_auc": {"val": val, "test": test}}
    tables = report.system_tables({"GCN": records}, "peers")
    assert [table.name for table in tables] == ["peers-minesweeper", "peers-minesweeper-roc_auc"]
    assert tables[1].title == "Test ROC-AUC (%) by depth, minesweeper"
    assert [list(map(str, table.rows[0])) for table in tables] == [
        ["GCN", "50.0", "50.0"],
        ["GCN", "60.0", "65.0"],
    ]
    figures = report.system_figures(tables, "peers")
    assert figures["peers-minesweeper-roc_auc"].axes[0].get_ylabel() == "test ROC-AUC (%)"
    del records[0]["metrics"]["roc_auc"]
    records[0]["training"]["monitor"] = "loss"
    assert len(report.system_tables({"GCN": records[:1]}, "peers")) == 1


def test_every_stored_split_is_a_repetition():
    for name, count in (("hops-4", 10), ("wikics", 20), ("photo", 3)):
        grid = {"datasets": [name], "layers": [2], "systems": ["gcnii"]}
        assert len(peers.peer_specs(**grid)["GCNII"]) == count


def test_a_cell_says_how_many_repetitions_it_has_where_others_have_more():
    labelled = peers.peer_specs(datasets=["cora", "cs"], layers=[2], systems=["gcnii", "dagnn"])
    records = {label: [graded_record(s) for s in specs] for label, specs in labelled.items()}
    records["DAGNN"].pop(0)
    cora, cs = report.system_tables(records, "peers")
    whole, some = (str(row[1]) for row in cora.rows)
    assert some.endswith(" (2/3)")
    assert "(" not in whole + str(cs.rows[1][1])
    (overview,) = report.overview_tables(records, "peers")
    assert [str(cell) for cell in overview.rows[1][1:3]] == [some, str(cs.rows[1][1])]


def test_an_overview_has_a_column_per_dataset_and_their_mean():
    labelled = peers.peer_specs(datasets=["cora", "cs"], layers=[2, 8], systems=["gcn", "gat"])
    records = {label: [graded_record(s) for s in specs] for label, specs in labelled.items()}
    both = report.overview_tables(records, "peers")
    assert [table.name for table in both] == ["peers-2", "peers-8"]
    cora, cs = report.system_tables(records, "peers")
    for column, table in enumerate(both, start=1):
        assert table.columns == ["system", "cora", "cs", "mean"]
        for row, in_cora, in_cs in zip(table.rows, cora.rows, cs.rows, strict=True):
            assert [row[0], row[1], row[2]] == [in_cora[0], in_cora[column], in_cs[column]]
            means = [float(str(cell).split()[0]) for cell in row[1:3]]
            assert float(row[3]) == pytest.approx(sum(means) / 2, abs=0.1)
    some = {"GCN": records["GCN"], "GAT": [r for r in records["GAT"] if r["dataset"] == "cs"]}
    assert report.overview_tables(some, "peers")[0].rows[1][1::2] == ["–", "–"]
    assert report.overview_tables({"GAT": some["GAT"]}, "peers") == []


def test_contenders_have_candidates_of_their_own_and_the_same_repetitions():
    labelled = peers.contender_specs(datasets=["cora", "cs"], layers=[16])
    assert list(labelled) == list(peers.CONTENDERS)
    for label, specs in labelled.items():
        seen = {(s.data.dataset, s.data.split, s.seed) for s in specs}
        assert len(seen) == 10 + 5 * 2
        others = label in ("GCNII", "APPNP", "DAGNN")  # ours has nothing to choose
        assert len(set(specs)) == len(specs) == (2 if others else 1) * len(seen)
    assert {s.settings.alpha for s in labelled["GCNII"]} == {0.1, 0.2}


def test_gcnii_as_published_is_what_the_publications_are():
    for setting in peers.publications():
        if setting.name.startswith("gcnii"):
            grid = {
                "datasets": [setting.specs[0].data.dataset],
                "layers": [setting.specs[0].layers],
            }
            (specs,) = peers.contender_specs(systems=["gcnii, as published"], **grid).values()
            assert specs == setting.specs


def test_gcnii_trained_the_same_way_has_its_network_and_our_training():
    grid = {"datasets": ["cora", "citeseer", "pubmed", "photo"], "layers": [16, 64]}
    labelled = peers.contender_specs(**grid)
    kinds = (peers.RETRAINED_GCNII, peers.PUBLISHED_GCNII, peers.OURS)
    for spec, published, ours in zip(*(labelled[kind] for kind in kinds), strict=True):
        assert spec.system == "gcnii"
        assert spec.data == published.data == ours.data
        assert spec.settings == published.settings
        assert spec.training == ours.training != published.training
    widths = {s.data.dataset: s.settings.hidden_channels for s in labelled[peers.RETRAINED_GCNII]}
    assert widths == {"cora": 64, "citeseer": 256, "pubmed": 256, "photo": 64}


def test_a_comparison_has_a_row_per_dataset_and_depth_with_p():
    labelled = peers.contender_specs(datasets=["cora", "cs"], layers=[16, 64])
    records = {
        label: [graded_record(s) for s in labelled[label]]
        for label in (peers.OURS, peers.RETRAINED_GCNII, "GCNII")
    }
    records["GCNII"] = [r for r in records["GCNII"] if r["dataset"] == "cs" and r["seed"] == 0]
    (table,) = report.comparison_tables(records, "contenders", peers.OURS)
    assert table.columns == ["dataset", "L", peers.OURS, peers.RETRAINED_GCNII, "GCNII"]
    assert [row[:2] for row in table.rows] == [[d, n] for d in ("cora", "cs") for n in ("16", "64")]
    single = [*report.system_tables(records, "x"), *report.pair_tables(records, "x", peers.OURS)]
    scores, pairs = ({t.name: t for t in single}[name].rows for name in ("x-cs", "x-cs-pairs"))
    score, p = scores[1][2], pairs[0][2].split(" ", 1)[1]
    assert str(table.rows[3][3]) == f"{score} {p}"
    assert str(table.rows[3][2]) == scores[0][2]
    assert table.rows[0][4] == "–"
    assert " (5/10) (p " in str(table.rows[3][4])
    without = {label: runs for label, runs in records.items() if label != peers.OURS}
    assert report.comparison_tables(without, "contenders", peers.OURS) == []
    only = {**records, peers.RETRAINED_GCNII: [], "GCNII": []}
    assert report.comparison_tables(only, "contenders", peers.OURS) == []


def test_stored_records_make_tables_without_the_systems_they_lack():
    """Systems that joined later have no row before their runs are stored."""
    stored = {r["signature"]: r for r in read_records(RESULTS / "contenders.jsonl.gz")}
    labelled = peers.contender_specs(datasets=["cs"], layers=[16])
    found = {
        label: [stored[s.signature] for s in specs if s.signature in stored]
        for label, specs in labelled.items()
    }
    assert len(found[peers.OURS]) == 10
    (table,) = report.comparison_tables(found, "contenders", peers.OURS)
    assert table.columns[2:] == [label for label, runs in found.items() if runs]
    for record in found[peers.OURS]:
        assert all(name in record for name in TOLD)
        assert len(record["versions"]["commit"]) == 40


def test_tables_and_figures():
    labelled = peers.peer_specs(datasets=["cora", "cs"], layers=[2, 8])
    records = {label: [graded_record(s) for s in specs] for label, specs in labelled.items()}
    cora, cs = report.system_tables(records, "peers")
    assert cora.columns == ["system", "L = 2", "L = 8"]
    rows = {row[0]: row[1:] for row in cora.rows}
    assert list(rows) == list(peers.ALL)
    assert str(rows["GCN"][0]).startswith("91.0 ± ")  # seeds 0, 1, 2
    assert str(rows["GAT"][1]).startswith("51.0 ± ")
    assert isinstance(rows["GCN"][0], Sourced)
    assert cs.name == "peers-cs"
    figures = report.system_figures([cora, cs], "peers")
    assert list(figures) == ["peers-cora", "peers-cs", "peers-datasets"]
    (axes,) = figures["peers-cora"].axes
    assert {line.get_label() for line in axes.lines} == set(peers.ALL)
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == len(axes.lines)
    together = figures["peers-datasets"]
    assert [axes.get_title(loc="left") for axes in together.axes] == ["cora", "cs"]


def test_a_line_has_a_gap_and_a_system_its_looks_where_runs_are_missing():
    labelled = peers.peer_specs(
        datasets=["cora", "cs"], layers=[2, 8], systems=["gcn", "gat", "gcnii"]
    )
    records = {label: [graded_record(s) for s in specs] for label, specs in labelled.items()}
    records["GCN"] = [
        r for r in records["GCN"] if r["dataset"] == "cora" and r["settings"]["num_layers"] == 8
    ]
    figures = report.system_figures(report.system_tables(records, "peers"), "peers")
    cora, cs = (
        {line.get_label(): line for line in axes.lines} for axes in figures["peers-datasets"].axes
    )
    for name in ("GAT", "GCNII"):
        assert cora[name].get_color() == cs[name].get_color()
        assert cora[name].get_marker() == cs[name].get_marker()
    assert list(cora["GCN"].get_xdata()) == [2, 8]
    assert [math.isnan(y) for y in cora["GCN"].get_ydata()] == [True, False]
    own = {label: [r for r in runs if r["dataset"] == "cora"] for label, runs in records.items()}
    tables = report.system_tables(own, "peers")
    assert list(report.system_figures(tables, "peers")) == ["peers-cora"]


def test_the_table_of_publications():
    item = next(p for p in peers.publications(["cora"]) if p.name == "gcnii-cora")
    records = [graded_record(spec) for spec in item.specs]
    rows = [
        (item.name, Published(85.5, "them", 0.5), records),
        ("nothing", Published(80.0, "others"), []),
    ]
    table = report.publication_table(rows)
    first, second = table.rows
    assert first[:4] == ["gcnii-cora", "cora", "64", "10"]
    assert str(first[4]) == "94.5 ± 3.0"
    assert first[5:7] == ["85.5 ± 0.5", "+9.0"]
    assert second == ["nothing", "–", "–", "0", "–", "80.0", "–", "others"]


def test_differences_are_taken_pair_by_pair():
    """Against a t-test written out: mean difference over its standard error."""
    specs = peers.peer_specs(datasets=["cs"], layers=[4], seeds=[0, 1], splits=3)
    ours, theirs = (
        [graded_record(s) for s in specs[label] if s.training.lr == 0.01][:6]
        for label in ("DeepGAT, deep", "GCNII")
    )
    assert [r["split"] for r in ours] == [r["split"] for r in theirs]
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        other["micro_f1"] = {**other["micro_f1"], "test": 0.80 + 0.01 * i}
        mine["micro_f1"] = {**mine["micro_f1"], "test": 0.80 + 0.01 * i + 0.01 * (1 + i % 3)}
    by_split: dict[str, list[float]] = {}
    for mine, other in zip(ours, theirs, strict=True):
        more = 100 * (mine["micro_f1"]["test"] - other["micro_f1"]["test"])
        by_split.setdefault(mine["split"], []).append(more)
    means = [sum(group) / len(group) for group in by_split.values()]
    mean = sum(means) / 3
    error = math.sqrt(sum((m - mean) ** 2 for m in means) / 2 / 3)
    found = paired(ours, theirs)
    assert found is not None
    assert found.difference == pytest.approx(mean)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(mean / error), 2))
    (table,) = report.pair_tables(
        {"DeepGAT, deep": ours, "GCNII": theirs}, "peers", "DeepGAT, deep"
    )
    assert table.rows == [["GCNII", f"{-mean:+.1f} (p = {found.p_value:.3f})"]]
    assert report.pair_tables({"DeepGAT, deep": ours}, "peers", "DeepGAT, deep") == []
    assert paired(ours, []) is None
    assert math.isnan(paired(ours[:1], theirs[:1]).p_value)


def test_panels_come_in_the_order_of_their_numbers():
    grid = {"datasets": ["hops-16", "hops-4", "cora"], "layers": [4], "systems": ["gcnii"]}
    found = [graded_record(s) for s in peers.peer_specs(splits=1, **grid)["GCNII"]]
    assert list(report.labelled_curves({"GCNII": found})) == ["cora", "hops-4", "hops-16"]
