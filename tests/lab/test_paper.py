"""The paper's targets: which runs they need, and what the tables make of them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from deepgat.analysis import divergence_bound
from deepgat.data.catalogue.load import Listing
from deepgat.errors import UserError
from deepgat.lab.paper import experiments, lemmas
from deepgat.lab.paper.experiments import (
    RATES,
    TARGETS,
    dataset_statistics,
    make_plan,
    target_names,
    target_specs,
)
from deepgat.lab.paper.published import DEEPGAT_PAPER, TABLE1
from deepgat.lab.report import sections
from deepgat.lab.report.attention_drift import (
    attention_drifts,
    drifts_beside,
    find_drifts,
    write_drifts,
)
from deepgat.lab.report.paper_tables import (
    degradation_table,
    depth_tables,
    nearest_tables,
    table1,
    table2,
)
from deepgat.lab.report.report_folder import write_target
from deepgat.lab.report.scores import best_depth, best_on_validation, curves, mean_score
from deepgat.training.recipes import recipe

from jobs import graded, graded_record


def records(target: str, plan: experiments.Plan) -> list[dict]:
    return [graded_record(spec) for spec in target_specs(target, plan)]


AUTHORS = make_plan("authors", datasets=["cs"], layers=[2, 15], seeds=[0, 1])
HONEST = make_plan("honest", datasets=["cs"], layers=[2, 15], seeds=[0, 1], splits=3)


def test_the_authors_protocol():
    specs = target_specs("depth", AUTHORS)
    assert len(specs) == 4 * 2 * 2  # systems, depths, seeds
    for spec in specs:
        usual = recipe(spec.system, preset="authors", score=spec.settings.score, dataset="cs",
                       num_layers=spec.layers)  # fmt: skip
        assert spec.settings == usual.settings
        assert spec.training == replace(usual.training, seed=spec.seed)
        assert spec.data.split == "authors"


def test_the_honest_protocol():
    specs = target_specs("depth", HONEST)
    assert len(specs) == 4 * 2 * 2 * 3 * len(RATES)
    assert {spec.data.split for spec in specs} == {f"random:{i}:20/30" for i in range(3)}
    assert {spec.training.lr for spec in specs} == set(RATES)
    assert {spec.settings.unit_features for spec in specs} == {True}
    deepgat = [spec for spec in specs if spec.system == "deepgat"]
    assert {spec.settings.label_input for spec in deepgat} == {
        "prediction"
    }  # the paper's equations


def test_targets_share_their_runs():
    for plan in (AUTHORS, HONEST):
        everything = set(target_specs("all", plan))
        for name in TARGETS:
            assert set(target_specs(name, plan)) <= everything
        grid = {*target_specs("nearest-neighbor", plan)}
        assert everything == grid | {*target_specs("over-smoothing", plan)}
        assert set(target_specs("degradation", plan)) < set(target_specs("depth", plan))


def test_attention_is_kept_where_it_is_compared():
    plan = make_plan("authors", datasets=["cs"], layers=[2, 4, 15], seeds=range(5))
    compared = target_specs("attention-kl", plan)
    assert len(compared) == 4 * 2 * 3
    assert {spec.analysis.attention for spec in compared} == {"all"}
    rest = set(target_specs("nearest-neighbor", plan)) - set(compared)
    assert {spec.analysis.attention for spec in rest} == {"none"}


def test_depths_and_datasets(monkeypatch):
    def listing(key: str, at_hand: bool) -> Listing:
        return Listing(key, key, 1, 1, 1, 1, "public", "", "cache" if at_hand else "", None)

    here = ("cs", "ppi-rebuilt", "csbm", "digits")
    everything = (*experiments.TABLE1_DATASETS, *experiments.QUICK_DATASETS)
    found = [listing(k, k in here) for k in everything]
    monkeypatch.setattr(experiments, "list_datasets", lambda: found)
    plan = make_plan()
    assert plan.datasets == plan.table1_datasets == ("cs", "ppi-rebuilt")
    assert plan.depths("cs") == tuple(range(1, 16))
    assert plan.depths("ppi-rebuilt") == tuple(range(1, 10))
    assert len(plan.seeds) == 5
    quick = make_plan(quick=True)
    assert quick.datasets == ("csbm", "digits")
    assert max(spec.training.epochs for spec in target_specs("all", quick)) <= 100
    nearest = target_specs("nearest-neighbor", plan)
    assert {spec.data.dataset for spec in nearest} == {"cs"}  # PPI has no classes to err about
    assert make_plan("honest").repeats("ppi-rebuilt") == [("public", 0), ("public", 1)]


def test_fewer_epochs_are_asked_for():
    few = make_plan("authors", datasets=["cs"], layers=[2, 15], seeds=[0, 1], epochs=7)
    for name in ("depth", "all"):
        usual, short = target_specs(name, AUTHORS), target_specs(name, few)
        assert [replace(s.training, epochs=7) for s in usual] == [s.training for s in short]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"protocol": "honst"}, "unknown protocol 'honst': did you mean 'honest'?"),
        ({"epochs": 0}, "epochs is 0: expected 1 or more"),
        ({"datasets": ["coraa"]}, "unknown dataset 'coraa'"),
        ({"layers": [0, 2]}, r"layers is \[0, 2\]: expected numbers from 1 on"),
        ({"splits": 0}, "splits is 0: expected 1 or more"),
    ],
)
def test_mistakes(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        make_plan(**arguments)


def test_mistaken_targets():
    with pytest.raises(UserError, match=r"unknown target 'tabel2': did you mean 'table2'\?"):
        target_names("tabel2")
    with pytest.raises(UserError, match="compares with 2 layers"):
        target_specs("attention-kl", make_plan(datasets=["cs"], layers=[3, 5]))


# ------------------------------------------------------------------------------- choosing


def test_honest_choices_look_at_validation_only():
    """Test scores that point the other way change no choice, only what is reported."""
    specs = [
        spec
        for spec in target_specs("depth", HONEST)
        if (spec.system, spec.settings.score) == ("deepgat", "dp")
    ]
    found = [graded_record(spec) for spec in specs]
    for record in found:
        val = (
            0.5
            + 0.1 * (record["training"]["lr"] == 0.01)
            + 0.2 * (record["settings"]["num_layers"] == 15)
        )
        record["micro_f1"] = {"val": val, "test": 1 - val}
    (curve,) = curves(found)["cs"].values()
    for layers, chosen in curve.items():
        assert len(chosen) == 6
        assert {r["training"]["lr"] for r in chosen} == {0.01}, layers
    best = best_depth(curve, "honest")
    assert best.layers == "15"
    assert best.mean == pytest.approx(20)
    assert best_depth(curve, "authors").layers == "2"  # who looked at test scores


def test_ties_go_to_the_lower_loss_then_to_fewer_layers():
    one, other = (graded_record(spec) for spec in target_specs("table2", HONEST)[:2])
    one["loss"], other["loss"] = {"val": 0.9}, {"val": 0.8}
    one["micro_f1"] = other["micro_f1"] = {"val": 0.5, "test": 0.5}
    assert best_on_validation([one, other]) is other
    one["loss"] = {"val": 0.8}
    one["settings"] = {**one["settings"], "num_layers": 1}
    other["settings"] = {**other["settings"], "num_layers": 2}
    assert best_on_validation([other, one]) is one


def test_intervals_are_over_splits_where_there_are_several():
    seeds = mean_score([("a", 1.0), ("a", 3.0)])
    assert (seeds.mean, seeds.repeats) == (2.0, 2)
    assert seeds.half_width > 10
    splits = mean_score([("a", 1.0), ("a", 3.0), ("b", 2.0), ("b", 2.0)])
    assert splits.half_width == 0
    assert str(mean_score([("a", 1.0)])) == "1.0"


# ------------------------------------------------------------------------------- tables


def test_table_2_has_the_published_numbers_and_the_differences():
    table = table2(records("table2", AUTHORS), "authors")
    rows = {row[1]: row for row in table.rows}
    printed = DEEPGAT_PAPER["gat", "dp", "cs"]
    best, last = 100 * (0.9 - 0.1 + 0.005), 100 * (0.9 - 0.75 + 0.005)
    assert rows["GAT DP"][2].startswith("80.5 ± ")
    assert rows["GAT DP"][2].endswith("(2)")
    assert rows["GAT DP"][3:6] == ["90.5 (2)", f"{best - 90.5:+.1f}", f"{best - 90.5:+.1f}"]
    assert rows["GAT DP"][7:] == ["9.3 (15)", f"{last - printed.deepest:+.1f}"]
    assert set(rows) == {"DeepGAT DP", "DeepGAT SD", "GAT DP", "GAT SD"}


def test_other_depths_are_not_compared_with_the_published_ones():
    plan = make_plan("authors", datasets=["cs"], layers=[3, 8], seeds=[0])
    row = next(r for r in table2(records("table2", plan), "authors").rows if r[1] == "GAT DP")
    assert row[5] == row[8] == "–"
    lost = degradation_table(records("degradation", plan), "authors").rows[0]
    assert lost[-1] == "–"


def test_stand_ins_are_never_set_beside_the_datasets_they_resemble():
    plan = make_plan("authors", datasets=["flickr-aane", "ppi-rebuilt"], layers=[2, 9], seeds=[0])
    for row in table2(records("table2", plan), "authors").rows:
        assert row[3:6] == ["–"] * 3
        assert row[7:] == ["–"] * 2


def test_degradation():
    (first, second) = degradation_table(records("degradation", AUTHORS), "authors").rows
    assert first[1] == "GAT DP"
    assert second[1] == "GAT SD"
    assert first[4:] == ["65.0", "81.2", "-16.2"]


def test_depth():
    (table,) = depth_tables(records("depth", AUTHORS))
    assert table.columns == ["L", "DeepGAT DP", "DeepGAT SD", "GAT DP", "GAT SD"]
    assert [row[0] for row in table.rows] == ["2", "15"]
    assert table.rows[0][1].startswith("90.5 ± ")
    assert table.rows[0][1].endswith("(91.5, -1.0)")


def test_nearest_neighbor():
    train, both = nearest_tables(records("nearest-neighbor", AUTHORS))
    assert "prototypes train," in train.title
    assert "prototypes train+val," in both.title
    assert train.columns[-1] == "oracle sum"
    assert train.rows[0][1].startswith("9.5 ± ")
    assert train.rows[0][1].endswith("[4.7]")


@pytest.mark.slow
@pytest.mark.parametrize("plan", [AUTHORS, HONEST], ids=["authors", "honest"])
def test_attention(plan, tmp_path):
    """Uniform attention in the deep network, tilted in the other: the numbers by hand."""
    specs = target_specs("attention-kl", plan)
    made = {spec.signature: graded(spec, "cpu") for spec in specs}

    def arrays(signature: str) -> dict:
        return made[signature].arrays

    found = [item.record for item in made.values()]
    drifts = attention_drifts(found, arrays, plan.protocol)
    assert [drift.name for drift in drifts] == ["DeepGAT DP", "DeepGAT SD", "GAT DP", "GAT SD"]
    for drift in drifts:
        runs = 1 if plan is AUTHORS else 3
        assert len(drift.runs) == runs
        assert list(drift.divergence) == list(range(1, 16))
        tilted = 0.25 * math.log(0.75) * 2 + 0.5 * math.log(1.5)
        expected = np.percentile([0, tilted, tilted, 0] * runs, (5, 25, 50, 75, 95))
        assert drift.divergence[15] == pytest.approx(tuple(expected), abs=1e-4)
        assert drift.uniform == pytest.approx(drift.divergence[15])
    assert drifts[0].bounds[15] == pytest.approx(0.4745, abs=1e-4)
    scale = math.sqrt(15) if plan is AUTHORS else 15
    assert drifts[1].bounds[15] == pytest.approx(divergence_bound(1 / scale))
    assert drifts[2].bounds[15] is None
    section = sections.make_section("attention-kl", drifts, plan.protocol)
    last, layers = section.tables
    assert last.rows[0][:2] == ["cs", "DeepGAT DP"]
    assert last.rows[0][7] == "0.474"
    assert len(layers.rows) == 16
    written = write_target("attention-kl", section.tables, section.figures(), tmp_path)
    assert tmp_path / "attention-kl-cs.png" in written
    assert attention_drifts(found, lambda signature: None, plan.protocol) == []


def test_attention_is_kept_beside_records(tmp_path):
    """What arrays gave is read back the same; a line that is none is named."""
    specs = target_specs("attention-kl", AUTHORS)
    made = {spec.signature: graded(spec, "cpu") for spec in specs}
    records = [item.record for item in made.values()]
    drifts = attention_drifts(records, lambda signature: made[signature].arrays, "authors")
    source = tmp_path / "records.jsonl"
    path = drifts_beside(source)
    assert find_drifts(source, records, "authors") == []
    write_drifts(path, drifts)
    assert find_drifts(source, records, "authors") == drifts
    assert find_drifts(source, [], "authors") == []
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(UserError, match=rf"line {len(drifts) + 1}, is not a divergence"):
        find_drifts(source, records, "authors")


@pytest.mark.slow
def test_lemmas(monkeypatch):
    monkeypatch.setattr(lemmas, "QUICK_DRAWS", 500)
    checks = list(lemmas.check_lemmas(quick=True))
    section = sections.make_section("lemmas", checks)
    (table,) = section.tables
    assert len(table.rows) == 4
    assert {row[6] for row in table.rows} == {"yes"}  # the formulas hold
    regular = [row[7] for row in table.rows if row[1].startswith("regular")]
    hubs = {row[0]: row[7] for row in table.rows if row[1].startswith("hubs")}
    assert regular == ["yes", "yes"]
    assert hubs["Lemma 1 (GCN)"] == "no"  # path counts are not the weights where degrees differ


def test_table_1_prints_the_difference():
    (row,) = dataset_statistics(["csbm"])
    fake = {**row, "dataset": "cora", "nodes": 2700}
    found = table1([fake, row])
    assert found.rows[0] == ["cora", "nodes", "2,708", "2,700", "-8", "2,700"]
    assert found.rows[len(TABLE1["cora"])][2] == "–"  # nobody printed csbm


def test_markdown_and_csv_of_a_table():
    table = table2(records("table2", AUTHORS), "authors")
    lines = table.markdown().splitlines()
    assert lines[2].count("|") == len(table.columns) + 1
    assert len(table.csv().splitlines()) == len(table.rows) + 1


@pytest.mark.slow
@pytest.mark.parametrize("plan", [AUTHORS, HONEST], ids=["authors", "honest"])
@pytest.mark.parametrize("target", ["degradation", "depth", "table2", "nearest-neighbor"])
def test_pages_are_written(target, plan, tmp_path):
    section = sections.make_section(target, records(target, plan), plan.protocol)
    written = write_target(target, section.tables, section.figures(), tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(written)
    assert (tmp_path / f"{target}.md").read_text().count("**") == 2 * len(section.tables)
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert bool(section.figures()) == (target in ("depth", "nearest-neighbor"))
