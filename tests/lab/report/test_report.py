"""deepgat report: the page, the folder, and what it refuses."""

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from typer.testing import CliRunner

from deepgat.cli import app
from deepgat.data.catalogue.entries import ENTRIES
from deepgat.errors import UserError
from deepgat.files import to_json
from deepgat.lab.experiments import Store, write_records
from deepgat.lab.experiments.store_entry import FORMAT, sealed
from deepgat.lab.paper.experiments import make_plan, target_specs
from deepgat.lab.paper.peers import OURS, contender_specs
from deepgat.lab.paper.study import study_specs
from deepgat.lab.report.attention_drift import attention_drifts
from deepgat.lab.report.charts import draw, lines
from deepgat.lab.report.families import families, family_of
from deepgat.lab.report.html_page import html_page, page_data
from deepgat.lab.report.over_smoothing import layer_values, profiles
from deepgat.lab.report.records import read_any_records, with_short_names
from deepgat.lab.report.report_folder import write_report
from deepgat.lab.report.sections import Report, make_report
from deepgat.lab.report.table import Sourced, file_name

from jobs import graded_record
from runs import HONEST, HOSTILE, PLAN, make_runs

ROOT = Path(__file__).parents[3]
STYLE = ROOT / "src" / "deepgat" / "lab" / "report" / "page" / "style.css"


@pytest.fixture(scope="module")
def report() -> Report:
    made = {run.record["signature"]: run for run in make_runs()}
    failure = {
        **next(iter(made.values())).record,
        "error": f"RuntimeError: {HOSTILE}",
        "traceback": HOSTILE,
    }

    def find_drifts(records, protocol):
        kept = [r for r in records if r["analysis"]["attention"] == "all"]
        return attention_drifts(kept, lambda signature: made[signature].arrays, protocol)

    records = [run.record for run in made.values()]
    return make_report(HOSTILE, records, [failure], find_drifts)


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return html_page(page_data(report))


class Read(HTMLParser):
    """The elements of a page, and the text of its scripts, styles and title."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside in self.texts:
            self.texts[self.inside][-1] += data


# ------------------------------------------------------------------------------- the page


def test_the_page_needs_nothing_from_elsewhere(page: str):
    read = Read(page)
    assert "http:" not in page
    assert "https:" not in page
    for tag, attributes in read.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "action", "data"):
                assert value.startswith(("#", "data:,")), (tag, value)
    for style in read.texts["style"]:
        assert not re.search(r"@import|@font-face|url\(", style)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|\bimport\b|innerHTML|\beval\(",
                         read.texts["script"][1])  # fmt: skip


def test_the_page_allows_its_own_script_and_style_alone(page: str):
    read = Read(page)
    (policy,) = [a["content"] for _, a in read.tags if a.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for kind, text in (
        ("script-src", read.texts["script"][1]),
        ("style-src", read.texts["style"][0]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[kind] == f"'sha256-{digest}'"


def test_the_data_is_all_there_and_stays_data(page: str, report: Report):
    read = Read(page)
    assert [tag for tag, _ in read.tags].count("script") == 2
    data = json.loads(read.texts["script"][0])
    expected = json.loads(to_json(page_data(report)))
    assert {**data, "made": ""} == {**expected, "made": ""}
    assert data["failures"][0]["error"] == f"RuntimeError: {HOSTILE}"
    assert len(page) < 1_000_000


@settings(max_examples=25)
@given(st.text(), st.text(st.sampled_from(list("<>/!-&'\"{}script ]\\")), max_size=40))
def test_no_text_breaks_the_page(title, error):
    read = Read(html_page({"title": title, "error": error}))
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert json.loads(read.texts["script"][0]) == {"title": title, "error": error}


def test_every_number_leads_to_its_runs(report: Report):
    data = page_data(report)
    assert len(data["runs"]) == len(report.records)
    (family, *_) = data["families"]
    sections = {section["name"]: section for section in family["sections"]}
    assert list(sections) == ["table2", "depth", "degradation", "over-smoothing", "attention-kl",
                              "nearest-neighbor"]  # fmt: skip
    (table,) = sections["table2"]["tables"]
    row = next(row for row in table["rows"] if row[:2] == ["cs", "GAT DP"])
    text, places = row[2]
    runs = [data["runs"][place] for place in places]
    assert text.endswith("(2)")
    assert [(run["dataset"], run["system"], run["layers"]) for run in runs] == [
        ("cs", "GAT DP", 2)
    ] * 3
    assert [run["seed"] for run in runs] == [0, 1, 2]
    mean = sum(run["micro_f1"]["test"] for run in runs) / 3
    assert float(text.split()[0]) == pytest.approx(100 * mean, abs=0.05)
    (table,) = [t for t in sections["depth"]["tables"] if t["name"] == "depth-cs"]
    (chart,) = table["charts"]
    line = next(s for s in chart["series"] if s["label"] == "GAT DP")
    assert line["points"][0][5] == places


def test_colours_can_be_read():
    """Text has a contrast of 4.5 or more, lines of 3 (WCAG 2.2), in both modes."""
    for mode in _variables(STYLE.read_text()):
        for name in ("text", "quiet", "link"):
            for ground in ("background", "surface"):
                assert _contrast(mode[name], mode[ground]) >= 4.5, (name, ground)
        for name in [n for n in mode if n.startswith("series-")]:
            assert _contrast(mode[name], mode["surface"]) >= 3, name


def _variables(style: str) -> list[dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", style, re.S)
    light, dark = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks[:2]]
    return [light, {**light, **dark}]


def _contrast(one: str, other: str) -> float:
    def luminance(color: str) -> float:
        shares = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = [
            s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares
        ]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# ------------------------------------------------------------------------------- families


def test_runs_of_a_preset_are_one_family_whatever_they_were_tuned_to():
    for plan, preset in ((PLAN, "authors"), (HONEST, "paper")):
        records = [graded_record(spec) for spec in target_specs("all", plan)]
        ((family, runs),) = families(records).items()
        assert (family.preset, family.changes) == (preset, ())
        assert family.protocol == plan.protocol
        assert len(runs) == len(records)


def test_the_deep_preset_is_one_family_at_every_depth():
    """Though its class heads decay otherwise in deep networks on large graphs."""
    grid = {"datasets": ["cora", "pubmed"], "layers": [16, 64, 128], "seeds": [0]}
    records = [graded_record(s) for s in contender_specs(**grid)[OURS]]
    ((family, runs),) = families(records).items()
    assert (family.preset, family.changes, len(runs)) == ("deep", (), 6)
    changed = [graded_record(s) for s in study_specs(**grid)["the preset, τ = 1"]]
    assert [family_of(record).changes for record in changed] == [("sharpness=1.0",)] * 6


def test_a_quick_plan_is_one_family_too():
    plan = make_plan(quick=True, datasets=["csbm", "digits", "cora"])
    ((family, _),) = families([graded_record(s) for s in target_specs("all", plan)]).items()
    assert family.name == "authors, heads=4, epochs=50, patience=20"


def test_changed_settings_and_other_splits_are_other_families():
    record = graded_record(target_specs("depth", PLAN)[0])
    changed = {**record, "settings": {**record["settings"], "dropout": 0.1}}
    assert family_of(changed).changes == ("dropout=0.1",)
    other = {**record, "split": "random:3:20/30"}
    found = families([record, changed, other])
    names = ["authors", "authors, splits random:20/30", "authors, dropout=0.1"]
    assert [family.name for family in found] == names
    many = {**record["settings"], "dropout": 0.1, "bias": False, "norm": "batch", "delta": 0.9,
            "label_hops": 1}  # fmt: skip
    assert family_of({**record, "settings": many}).name.endswith("and 1 more changes")


# ------------------------------------------------------------------------------- layers


def test_over_smoothing_changes_no_run_of_the_grid():
    for plan in (PLAN, HONEST):
        own = target_specs("over-smoothing", plan)
        assert {spec.analysis.measures for spec in own} == {("layer-scores", "over-smoothing")}
        assert not set(own) & set(target_specs("nearest-neighbor", plan))
    quick = make_plan(quick=True, datasets=["csbm"])
    assert {s.layers for s in target_specs("over-smoothing", quick)} == {2, 8}


def test_profiles_are_means_over_runs_and_graphs():
    (spec, other) = target_specs("over-smoothing", PLAN)[:2]
    records = [graded_record(spec), graded_record(other)]
    for value, record in zip((1.0, 3.0), records, strict=True):
        record["measures"] = {
            "layer-scores": {"test": {"0": 0.25, "1": 0.5, "2": value / 4}},
            "over-smoothing": [
                [{"layer": 1, "energy": value}, {"layer": 2, "energy": 0.0}],
                [{"layer": 1, "energy": value + 2}, {"layer": 2, "energy": None}],
            ],
        }
    assert layer_values(records[0], "energy") == {1: 2.0, 2: 0.0}
    ((profile,),) = (systems.values() for systems in profiles(records).values())
    assert profile["energy"][1].mean == 3.0
    assert {layer: s.mean for layer, s in profile["micro_f1"].items()} == {0: 25, 1: 50, 2: 50}
    assert profile["energy"][1].repeats == 2
    records[0]["measures"] = records[1]["measures"] = {}
    assert profiles(records) == {}  # one prediction is no profile


# ------------------------------------------------------------------------------- the folder


def small(count: int = 8) -> list[dict]:
    specs = target_specs("depth", make_plan(datasets=["cs"], layers=[2, 15], seeds=[0]))
    return [sealed({**graded_record(s), "format": FORMAT, "arrays": {"sha256": "", "bytes": 0}})
            for s in specs][:count]  # fmt: skip


def invoke(*arguments: object):
    return CliRunner().invoke(app, ["report", *map(str, arguments), "--quiet"])


@pytest.mark.slow
def test_a_file_of_records_becomes_a_folder(tmp_path):
    write_records(tmp_path / "records.jsonl", small())
    out = tmp_path / "report"
    for _ in range(2):  # an earlier report is replaced
        result = invoke(tmp_path / "records.jsonl", "--out", out, "--records-only")
        assert result.exit_code == 0, result.output
        assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl", "report"]
    assert sorted(path.name for path in out.iterdir()) == ["figures", "report.html", "tables"]
    assert "records.jsonl</title>" in (out / "report.html").read_text()
    tables = {path.name for path in (out / "tables").iterdir()}
    assert {"table2.md", "table2.csv", "depth-cs.md", "degradation.csv"} <= tables
    assert (out / "figures" / "depth-cs.pdf").read_bytes().startswith(b"%PDF")
    assert (out / "figures" / "depth-cs.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda *_args, **_more: None)


def test_what_deepgat_train_prints_is_enough(tmp_path, no_figures):
    lines = (ROOT / "results" / "runs.jsonl").read_text().splitlines()
    (tmp_path / "runs.jsonl").write_text("\n".join([*lines[:3], "", lines[0]]))
    result = invoke(tmp_path / "runs.jsonl", "--out", tmp_path / "out", "--records-only")
    assert result.exit_code == 0, result.output
    assert "3 runs" in result.output
    text = Read((tmp_path / "out" / "report.html").read_text()).texts["script"][0]
    data = json.loads(text)
    assert data["shared"][data["runs"][0]["origin"]]["hardware"] == "NVIDIA H200"
    assert "attention-kl" not in [s["name"] for s in data["families"][0]["sections"]]


def test_a_users_graph_is_named_after_its_folder(tmp_path, no_figures):
    """Its path cannot be part of a file name; equal names, and those of the catalogue, differ."""
    first = json.loads((ROOT / "results" / "runs.jsonl").read_text().splitlines()[0])
    paths = ["/data/mine", "/other/mine", "/data/cs", "cs"]
    lines = [to_json({**first, "dataset": path}) for path in paths]
    (tmp_path / "runs.jsonl").write_text("".join(lines))
    result = invoke(tmp_path / "runs.jsonl", "--out", tmp_path / "out", "--records-only")
    assert result.exit_code == 0, result.output
    data = json.loads(Read((tmp_path / "out" / "report.html").read_text()).texts["script"][0])
    shown = {data["shared"][run["spec"]]["data"]["dataset"]: run["dataset"] for run in data["runs"]}
    assert shown == {"/data/mine": "mine", "/other/mine": "mine-2", "/data/cs": "cs-2", "cs": "cs"}
    tables = {path.name for path in (tmp_path / "out" / "tables").iterdir()}
    assert any(name.endswith("depth-mine-2.csv") for name in tables)


NAMES = ["/", "", "..", "../..", "a\0b", "$x", "a$b_c$ $", "\ud800", "tab\there", "<b>|x|",
         "/p/" + "m" * 300, "/q/" + "m" * 300, "/p/" + "图" * 100, "/p/CORA", "4"]  # fmt: skip


def test_a_graph_may_have_any_name(tmp_path):
    """Every table has a file of its own, and figures show names as they are."""
    first = json.loads((ROOT / "results" / "runs.jsonl").read_text().splitlines()[0])
    lines = [json.dumps({**first, "dataset": name}) for name in NAMES]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    records = with_short_names(read_any_records(tmp_path / "runs.jsonl"))
    assert len({record["dataset"].casefold() for record in records}) == len(NAMES)
    assert not {record["dataset"].lower() for record in records} & ENTRIES.keys()
    sections = list(make_report("any", records).parts())
    tables = [table.name for section in sections for table in section.tables]
    assert len(set(tables)) == len(tables) > len(NAMES)
    for name in tables:
        (tmp_path / f"{name}.md").touch()  # a name that the system takes, in this folder
    assert len(list(tmp_path.glob("*.md"))) == len(tables)
    charts = {t.title: t.charts for s in sections for t in s.tables if s.name == "depth"}
    for title in (title for title in charts if "$" in title):
        shown = draw(charts[title]).axes[0].get_title(loc="left")
        assert is_math_text(shown) is False
        assert shown.replace(r"\$", "$").replace("\n", " ") == title


def test_one_depth_has_whole_numbers_on_its_axis():
    axes = draw([lines({"GCN": {2: "75.0"}}, "g", "L", "%")]).axes[0]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1, 2, 3]


@given(st.lists(st.text(), max_size=8))
def test_file_names_are_safe_and_distinct(texts):
    taken: set[str] = set()
    names = [file_name(text, taken) for text in texts]
    assert len({name.casefold() for name in names}) == len(names)
    for name in names:
        assert re.fullmatch(r"[\w.-]+", name)
        assert not name.startswith((".", "-"))
        assert len(name.encode()) < 200


def test_lines_that_are_no_records_are_named_and_left_out(tmp_path, no_figures):
    first = json.loads((ROOT / "results" / "runs.jsonl").read_text().splitlines()[0])
    without = {name: value for name, value in first.items() if name != "micro_f1"}
    odd = {
        "it has no micro_f1": without,
        "micro_f1.test is 'high': expected a number": {**first, "micro_f1": {"test": "high"}},
        "settings is not a JSON object": {**first, "settings": 3},
        "it has no settings.num_layers": {**first, "settings": {}},
        "too many lists or objects inside": {
            **first,
            "x": json.loads("[" * 99 + "]" * 99),
        },
    }
    lines = [json.dumps(first), *map(json.dumps, odd.values()), "[" * 100_000, "half of a li"]
    stranger = {**first, "system": "of another deepgat", "seed": 7}
    (tmp_path / "runs.jsonl").write_text("\n".join([*lines, json.dumps(stranger)]))
    with pytest.warns(UserWarning, match="left out") as told:
        result = invoke(tmp_path / "runs.jsonl", "--out", tmp_path / "out", "--records-only")
    assert result.exit_code == 0, result.output
    sentences = [str(warning.message) for warning in told]
    for line, (why, sentence) in enumerate(zip(odd, sentences, strict=False), start=2):
        assert f"runs.jsonl, line {line}, is not the record of a run: " in sentence
        assert why in sentence
    assert "has 2 more lines that are not the record of a run" in sentences[5]
    assert "is left out of the tables: unknown" in sentences[6]


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "runs.jsonl")
    result = invoke(tmp_path / "runs.jsonl", "--out", tmp_path / "out")
    assert "runs.jsonl cannot be read" in str(result.exception)


def test_a_report_is_written_whole_or_not_at_all(tmp_path, monkeypatch, report):
    out = tmp_path / "report"
    out.mkdir()
    (out / "report.html").write_text("an earlier one")

    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(report, out)
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert (out / "report.html").read_text() == "an earlier one"


def test_mistakes_are_told_in_a_sentence(tmp_path):
    Store(tmp_path / "empty")
    (tmp_path / "folder").mkdir()
    (tmp_path / "words.jsonl").write_text("words\n")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "half.jsonl").write_text('{"dataset": "cs", "split": "public"}\n')
    (tmp_path / "image.jsonl").write_bytes(b"\x89PNG\xff")
    changed = {**small(1)[0], "seed": 99}
    (tmp_path / "changed.jsonl").write_text(to_json(changed))
    write_records(tmp_path / "good.jsonl", small(1))
    for source, sentence in {
        "empty": "has no finished run to report",
        "folder": "is not a store of runs",
        "missing": "cannot be read: expected a store, or a .jsonl or .jsonl.gz file",
        "words.jsonl": "line 1, is not the record of a run: it is not JSON",
        "list.jsonl": "it is not a JSON object",
        "half.jsonl": "it has no seed",
        "image.jsonl": "cannot be read",
        "changed.jsonl": "was changed after it was written",
    }.items():
        result = invoke(tmp_path / source, "--out", tmp_path / "out")
        assert isinstance(result.exception, UserError), source
        assert sentence in str(result.exception)
        assert not (tmp_path / "out").exists()
    result = invoke(tmp_path / "good.jsonl", "--out", tmp_path / "folder" / "..")
    assert "not a report folder" in str(result.exception)


def test_a_cell_with_runs_is_still_its_text():
    cell = Sourced("91.5 (2)", ["a", "b"])
    assert cell == "91.5 (2)"
    assert cell.runs == ("a", "b")


def test_wide_bands_do_not_squeeze_the_lines():
    cells = {
        "GCN": {
            2: Sourced("70 ± 60", (), (70.0, 10.0, 130.0)),
            4: Sourced("60", (), (60.0, 59, 61)),
        },
        "GAT": {2: Sourced("50", (), (50.0, 49.0, 51.0)), 4: Sourced("55", (), (55.0, 54.0, 56.0))},
    }
    (axes,) = draw([lines(cells, "a graph", "L", "%", log_x=True)]).axes
    assert axes.get_ylim() == pytest.approx((47, 73))
