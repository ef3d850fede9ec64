"""The study of ``deep``: rows that can be run, and frozen rows whose settings are gone."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from deepgat.lab.experiments import RunSpec
from deepgat.lab.paper import peers, study
from deepgat.lab.report import systems_by_depth as report

from jobs import graded_record

FROZEN = Path(__file__).parents[2] / "results" / "study.frozen.jsonl.gz"
LIVE = "the preset, one stage"


def read_frozen() -> tuple[list[str], list[dict]]:
    """The order of rows, and the frozen scores."""
    head, *rows = map(json.loads, gzip.decompress(FROZEN.read_bytes()).decode().splitlines())
    return head["rows"], rows


def test_the_study_knows_the_preset_as_it_is():
    """It changes one thing at a time in the very runs that ``contenders`` makes."""
    grid = {"datasets": ["cora", "pubmed"], "layers": [16, 64], "seeds": [0, 1]}
    ours = peers.contender_specs(**grid)
    changed = study.study_specs(**grid)
    assert changed[study.PRESET] == ours[peers.OURS]
    distinct = {tuple(specs) for specs in changed.values()}
    assert len(distinct) == len(changed) > 10


def test_the_study_changes_one_thing_at_a_time():
    labelled = study.study_specs(datasets=["pubmed"], layers=[128], seeds=[0])
    assert list(labelled) == list(study.CHANGES)
    (base,) = labelled[study.PRESET]
    seen = set()
    for name, specs in labelled.items():
        (spec,) = specs
        settings, training = study.CHANGES[name]
        assert spec.settings == replace(base.settings, **settings), name
        assert spec.training == replace(base.training, **training), name
        seen.add(spec)
    assert len(seen) == len(labelled)


# ------------------------------------------------------------------------------- frozen rows


def frozen(row: str, seed: int = 0, **place: object) -> dict:
    whole = {"dataset": "cora", "split": "public", "seed": seed, "layers": 16, **place}
    scores = {"val": 0.8, "test": 0.82, "val_loss": 0.6, "commit": f"{seed:x}" * 40}
    return {"row": row, **whole, **scores}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two frozen rows with a live one between them, and scores in places that nobody asks for."""
    rows = [
        frozen("last"),
        frozen("first", 1),
        frozen("first", 0),
        frozen("first", 2),
        frozen("first", 0, dataset="cs"),
        frozen("first", 0, split="random:0:20/30"),
        frozen("first", 0, layers=32),
    ]
    path = tmp_path / "study.frozen.jsonl.gz"
    lines = [{"rows": ["first", LIVE, "nobody ran it", "last"]}, *rows]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return path


@pytest.fixture
def specs() -> dict[str, list[RunSpec]]:
    """Two live rows, on Cora with 16 layers and seeds 0 and 1."""
    both = [study.PRESET, LIVE]
    return study.study_specs(datasets=["cora"], layers=[16], seeds=[0, 1], systems=both)


def test_frozen_rows_join_where_a_spec_has_their_place(small, specs):
    found = {name: [graded_record(spec) for spec in own] for name, own in specs.items()}
    every = [spec for own in specs.values() for spec in own]
    joined = study.with_frozen_rows(found, every, small)
    assert list(joined) == ["first", LIVE, "nobody ran it", "last", study.PRESET]
    assert joined[LIVE] == found[LIVE]
    assert joined[study.PRESET] == found[study.PRESET]
    assert [record["seed"] for record in joined["first"]] == [1, 0]  # in the file's order
    assert [record["seed"] for record in joined["last"]] == [0]
    assert joined["nobody ran it"] == []
    for record in joined["first"]:
        assert (record["dataset"], record["split"]) == ("cora", "public")
        assert record["settings"]["num_layers"] == 16
        assert record["micro_f1"] == {"val": 0.8, "test": 0.82}
        assert record["loss"] == {"val": 0.6}
        assert record["signature"] == f"frozen at {record['seed']:x}".ljust(17, str(record["seed"]))
    nothing = study.with_frozen_rows({}, [], small)
    assert nothing == {"first": [], LIVE: [], "nobody ran it": [], "last": []}


def test_frozen_rows_are_in_the_tables(small, specs):
    found = {name: [graded_record(spec) for spec in own] for name, own in specs.items()}
    every = [spec for own in specs.values() for spec in own]
    (table,) = report.system_tables(study.with_frozen_rows(found, every, small), "study")
    rows = {row[0]: str(row[1]) for row in table.rows}
    assert list(rows) == ["first", LIVE, "last", study.PRESET]
    assert rows["first"] == "82.0 ± 0.0"
    assert rows["last"] == "82.0 (1/2)"


def test_every_stored_frozen_row_has_a_commit_and_is_not_run_any_more():
    names, rows = read_frozen()
    assert len(set(names)) == len(names)
    assert rows
    places = {(r["row"], r["dataset"], r["split"], r["seed"], r["layers"]) for r in rows}
    assert len(places) == len(rows)
    for row in rows:
        assert row["row"] in names
        assert row["row"] not in study.CHANGES
        assert re.fullmatch("[0-9a-f]{40}", row["commit"])
        assert 0 < row["val"] < 1
        assert 0 < row["test"] < 1
    assert {study.BASE, study.PRESET} <= set(names)


def test_the_stored_frozen_rows_join_the_study():
    names, rows = read_frozen()
    specs = study.study_specs(datasets=["cora", "pubmed"], layers=[16, 64], seeds=[0, 1])
    every = [spec for own in specs.values() for spec in own]
    joined = study.with_frozen_rows({name: [] for name in specs}, every, FROZEN)
    assert list(joined) == [*names, *(name for name in study.CHANGES if name not in names)]
    wanted = [
        (r["row"], r["dataset"], r["seed"], r["layers"], r["test"])
        for r in rows
        if r["dataset"] in ("cora", "pubmed") and r["layers"] in (16, 64) and r["seed"] < 2
    ]
    assert {r["split"] for r in rows if r["dataset"] in ("cora", "pubmed")} == {"public"}
    found = [
        (name, r["dataset"], r["seed"], r["settings"]["num_layers"], r["micro_f1"]["test"])
        for name, records in joined.items()
        for r in records
    ]
    assert sorted(found) == sorted(wanted)
    assert joined[study.BASE]
