"""The commands for runs: deepgat run, store and reproduce."""

import functools
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from deepgat.cli import main
from deepgat.cli.show import OUT
from deepgat.lab.commands import run as run_command
from deepgat.lab.commands.watch import RunsView, duration
from deepgat.lab.experiments import Event, Planned, RunSpec, Store, run_all
from deepgat.lab.experiments.store_entry import ARRAYS
from deepgat.lab.experiments.work import attempt
from deepgat.lab.paper import study

from jobs import DIVERGING, FAILING, WAITING, fake, graded, graded_record, spec

RESULTS = Path(__file__).parents[2] / "results"


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path) -> Run:
    """Calls main() in a folder of its own; runs take no time and are made by forked workers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(OUT, "width", 200)
    from deepgat.lab.experiments import processes

    monkeypatch.setattr(processes, "START_METHOD", "fork")
    monkeypatch.setattr(run_command, "run_all", functools.partial(run_all, perform=job))

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["deepgat", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return Result(exit_.value.code or 0, out, err)

    return call


def job(wanted: RunSpec, device: str):
    odd = wanted.seed in (FAILING, WAITING) or wanted.layers == DIVERGING
    return (fake if odd else graded)(wanted, device)


def write_specs(path: Path, *seeds: int) -> Path:
    """The runs that ``spec(seed=…)`` makes, in full but for the seeds."""
    lines = [line for line in spec().to_toml().splitlines() if not line.startswith("seed")]
    path.write_text("\n".join([*lines, "[sweep]", f"training.seed = {list(seeds)}"]))
    return path


def assert_sentence(result: Result, *parts: str) -> None:
    assert result.code == 2
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]


# ------------------------------------------------------------------------------- run


def test_run_makes_what_is_missing(run):
    path = write_specs(Path("runs.toml"), 0, 1)
    first = run("run", path, "--device", "cpu", "--workers", 2)
    assert first.code == 0
    assert "micro-F1 (%) of 2 runs in deepgat-runs" in first.out
    assert "2 runs, 0 of them already in the store" in first.err
    again = run("run", path, "--device", "cpu")
    assert "2 runs, 2 of them already in the store" in again.err
    listed = run("store", "ls", "--json").out.splitlines()
    records = [json.loads(line) for line in listed]
    assert {record["signature"] for record in records} == {
        spec(seed=seed).signature for seed in (0, 1)
    }
    assert run("run", path, "--quiet").err == ""
    printed = run("run", path, "--quiet", "--json").out.splitlines()
    assert sorted(printed) == sorted(listed)
    title, head, *rows = run("run", path, "--quiet").out.splitlines()
    assert title == "# micro-F1 (%) of 2 runs in deepgat-runs"
    assert head.split("\t")[:2] == ["run", "dataset"]
    assert [row.split("\t")[6:8] for row in rows] == [["90.00", "88.00"], ["91.00", "89.00"]]


def test_too_many_runs_are_counted_before_they_are_listed(run):
    wide = ["--seeds", "0-9999", "--layers", "1-9999", "--splits", 10**9]
    result = run("reproduce", "depth", "--protocol", "honest", *wide)
    assert_sentence(result, "--splits describes", "runs: expected at most 100,000")


def test_a_failed_run_is_told_and_the_exit_code_is_1(run):
    path = write_specs(Path("runs.toml"), 0, FAILING)
    for _ in range(2):
        result = run("run", path, "--device", "cpu", "--workers", 1)
        assert result.code == 1
        assert "micro-F1 (%) of 1 runs" in result.out
        assert "the loss became nan" in result.err
        assert "1 of 2 runs failed" in result.err
    listed = run("store", "ls", "--failed")
    assert listed.code == 0
    assert "the loss became nan" in listed.out
    signature = spec(seed=FAILING).signature
    shown = run("store", "show", signature)
    assert "# failed: the loss became nan" in shown.out
    assert "UserError" in shown.out
    retried = run("run", path, "--device", "cpu", "--retry-failed")
    assert "0 of them" not in retried.err
    assert retried.code == 1


def test_ctrl_c_exits_with_130(run, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "run_all", interrupted)
    result = run("run", write_specs(Path("runs.toml"), 0))
    assert result.code == 130
    assert "the same command goes on from there" in result.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run none.toml", "none.toml does not exist: expected a TOML file"),
        ("run label-propagation-cora", "label-propagation is not trained, so it has no runs"),
        ("run runs.toml --store runs.toml", "runs.toml is a file"),
        ("run runs.toml --workers 0", "workers is 0: expected 1 or more"),
        ("run runs.toml --device gpu", "the device 'gpu' cannot be used here"),
        ("store ls", "deepgat-runs is not a store of runs: it has no store.json"),
        ("store show abc --store .", ". is not a store of runs"),
        ("store export x.tar", "is not a store of runs"),
        ("store import none.tar", "none.tar cannot be read: expected a store, or a tar file"),
        ("reproduce tabel1", "unknown target 'tabel1': did you mean 'table1'?"),
        ("reproduce depth --protocol x", "unknown protocol 'x'"),
        ("reproduce depth --datasets coraa", "unknown dataset 'coraa': did you mean 'cora'?"),
        ("reproduce depth --layers x", "--layers 'x': expected numbers and ranges"),
        ("reproduce depth --layers 0 --datasets cs", "layers is [0]: expected numbers from 1 on"),
        ("reproduce depth --seeds 3-1", "--seeds '3-1': '3-1' is not a range of seeds"),
        ("reproduce depth --splits 0", "splits is 0: expected 1 or more"),
        ("reproduce depth --datasets cs --out runs.toml", "runs.toml is a file: --out expects"),
        ("reproduce depth --datasets cs --records x.jsonl", "x.jsonl cannot be read"),
        ("reproduce attention-kl --datasets cs --layers 3", "compares with 2 layers"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(run, arguments, sentence):
    write_specs(Path("runs.toml"), 0)
    assert_sentence(run(*arguments.split()), sentence)


def test_a_mistake_in_a_file_names_the_file(run):
    Path("runs.toml").write_text('[data]\ndataset = "csbm"\n[setings]\n')
    told = "runs.toml: unknown section 'setings': did you mean 'settings'?"
    assert_sentence(run("run", "runs.toml"), told)


# ------------------------------------------------------------------------------- store


@pytest.fixture
def two_runs(run) -> list[str]:
    """In the store deepgat-runs."""
    store = Store("deepgat-runs")
    for seed in (0, 1):
        attempt(store, spec(seed=seed), "cpu", graded)
    return store.signatures()


def test_ls_and_show(run, two_runs):
    listed = run("store", "ls")
    assert all(signature[:8] in listed.out for signature in two_runs)
    assert run("store", "ls", "--dataset", "cora", "--json").out == ""
    assert len(run("store", "ls", "--model", "deepgat", "--json").out.splitlines()) == 2
    shown = run("store", "show", two_runs[0][:8])
    Path("again.toml").write_text(shown.out)
    assert "1 runs, 1 of them already" in run("run", "again.toml").err  # it is its own spec
    assert_sentence(run("store", "show", "zzz"), "no run begins with 'zzz'")


def test_rm(run, two_runs):
    assert run("store", "rm", two_runs[0][:10]).out == f"removed {two_runs[0]}\n"
    assert Store("deepgat-runs").signatures() == two_runs[1:]


def test_export_import_and_verify(run, two_runs):
    assert run("store", "export", "runs.tar").out == "2 runs in runs.tar\n"
    assert run("store", "export", "runs.jsonl", two_runs[0]).out == "1 runs in runs.jsonl\n"
    with tarfile.open("runs.tar") as tar:
        assert len(tar.getnames()) == 7
    for added in (2, 0):
        result = run("store", "import", "runs.tar", "--store", "other")
        assert result.out == f"runs.tar: {added} added, {2 - added} were here already\n"
    assert run("store", "verify", "--store", "other").out == "2 runs are whole, 0 damaged\n"
    harmed = Store("other").path(two_runs[0]) / ARRAYS
    harmed.write_bytes(harmed.read_bytes()[:-1] + b"x")
    assert run("store", "import", "other", "--store", "third").code == 1
    result = run("store", "verify", "--store", "other")
    assert result.code == 1
    assert f"damaged {two_runs[0]}: {ARRAYS} was changed" in result.err
    assert result.out == "1 runs are whole, 1 damaged\n"
    assert run("store", "verify", "--store", "other").code == 0


# ------------------------------------------------------------------------------- reproduce


def test_reproduce_makes_runs_and_writes_a_table(run):
    result = run("reproduce", "table2", "--datasets", "cs", "--layers", "2", "--seeds", "0",
                 "--device", "cpu", "--workers", "1")  # fmt: skip
    assert result.code == 0
    assert "4 runs, 0 of them already in the store" in result.err
    assert "91.5 (2)" in Path("reproduction/table2.md").read_text()
    assert len(Path("reproduction/records.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_reproduce_joins_the_frozen_rows_of_the_study(run):
    """They lie beside the study's records, and are compared with its live rows."""
    arguments = ("reproduce", "study", "--records", RESULTS / "study.jsonl.gz", "--datasets",
                 "cora", "--layers", "16", "--seeds", "0-2")  # fmt: skip
    result = run(*arguments)
    assert result.code == 0
    text = Path("reproduction/study.md").read_text()
    for row in (study.BASE, study.PRESET):
        assert f"| {row} | " in text
    assert f"Points of test micro-F1 above {study.BASE}, cora" in text
    alone = run(*arguments, "--systems", study.PRESET, "--out", "alone")
    assert alone.code == 0
    assert study.BASE not in Path("alone/study.md").read_text()


@pytest.mark.slow
def test_reproduce_prints_and_writes_tables_with_the_published_numbers(run):
    arguments = ("reproduce", "table2", "--datasets", "cs", "--layers", "2,15", "--seeds", "0-1",
                 "--device", "cpu")  # fmt: skip
    result = run(*arguments)
    assert result.code == 0
    assert "16 runs, 0 of them already in the store" in result.err
    assert "91.5 (2)" in result.out
    out = Path("reproduction")
    assert {path.name for path in out.iterdir()} == {
        "records.jsonl", "table2.csv", "table2.md"
    }  # fmt: skip
    assert "16 runs, 16 of them already in the store" in run(*arguments).err
    Path("deepgat-runs").rename("elsewhere")
    for source in (out / "records.jsonl", "elsewhere"):
        again = run(*arguments, "--records", source, "--out", "again")
        assert again.out.replace("again", "reproduction") == result.out
        assert again.err == ""
    assert not Path("deepgat-runs").exists()  # nothing was run
    more = run(*arguments, "--seeds", "0-2", "--records", out / "records.jsonl", "--out", "more")
    assert "8 of 24 runs are not in" in more.err
    known = ("--seeds", "0-2", "--known", out / "records.jsonl", "--out", "more")
    made = run(*arguments, *known)
    assert "8 runs, 0 of them already in the store" in made.err
    assert len((Path("more") / "records.jsonl").read_text().splitlines()) == 24
    assert_sentence(run(*arguments, *known, "--records", "elsewhere"), "choose one")


@pytest.mark.slow
def test_a_run_that_diverged_is_a_result(run):
    """It is told from one that is missing, wherever it was made, and not made again."""
    arguments = ("reproduce", "peers", "--systems", "gat;gcn", "--datasets", "cora", "--layers",
                 f"2,{DIVERGING}", "--seeds", "0-1", "--device", "cpu")  # fmt: skip
    result = run(*arguments)
    assert result.code == 0
    lines = Path("reproduction/peers.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith("| GAT"))
    assert row.endswith("| diverged |")
    where = Path("reproduction/records.diverged.jsonl")
    told = f"4 of 16 runs diverged: {where} says when and where"
    assert told in result.err
    assert "the loss became nan at epoch 3" in where.read_text()
    records = ("reproduction/records.jsonl", "deepgat-runs")
    for source in records:
        again = run(*arguments, "--records", source, "--out", "again")
        assert again.out.replace("again", "reproduction") == result.out
        assert again.err == told.replace("reproduction", "again") + "\n"
    for source in records:
        known = run(*arguments, "--known", source, "--store", f"new {source[:4]}", "--out", "known")
        assert (known.code, known.out.replace("known", "reproduction")) == (0, result.out)
        assert "0 runs, 0 of them already in the store" in known.err
        assert Path("known/records.diverged.jsonl").read_text() == where.read_text()
    where.unlink()
    bare = run(*arguments, "--records", "reproduction/records.jsonl", "--out", "bare")
    assert "4 of 16 runs are not in" in bare.err
    row = next(line for line in Path("bare/peers.md").read_text().splitlines() if "GAT" in line)
    assert row.endswith("| – |")


@pytest.mark.slow
def test_a_system_that_diverged_everywhere_has_its_row(run):
    arguments = ("reproduce", "peers", "--systems", "gat;gcn", "--datasets", "cora,citeseer",
                 "--layers", DIVERGING, "--seeds", "0", "--device", "cpu")  # fmt: skip
    assert run(*arguments).code == 0
    text = Path("reproduction/peers.md").read_text()
    assert text.count("| GAT | diverged |\n") == 4
    assert text.count("| GAT | diverged | diverged | – |\n") == 2


@pytest.mark.slow
def test_all_makes_the_page_too(run):
    result = run("reproduce", "all", "--quick", "--datasets", "csbm", "--layers", "2,3",
                 "--seeds", "0", "--epochs", "2", "--device", "cpu", "--workers", "1")  # fmt: skip
    assert result.code == 0
    page = Path("reproduction") / "report" / "report.html"
    assert result.out.rstrip().endswith(f"18 runs in {page}")
    text = page.read_text()
    assert all(part in text for part in ("DeepGAT DP", "Table 1: the datasets", "Lemma 2"))


def test_all_does_not_train_for_a_page_that_cannot_be_written(run):
    kept = Path("reproduction") / "report" / "mine.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    assert_sentence(run("reproduce", "all", "--quick", "--datasets", "csbm"), "report")
    assert kept.read_text() == "mine"
    assert not Path("deepgat-runs").exists()


@pytest.mark.usefixtures("two_runs")
def test_records_of_another_plan(run):
    result = run("reproduce", "depth", "--datasets", "cs", "--records", "deepgat-runs")
    assert_sentence(result, "deepgat-runs has no run of this plan")


def test_reproduce_needs_data(run, monkeypatch):
    from deepgat.lab.paper import experiments

    monkeypatch.setattr(experiments, "list_datasets", lambda: [])
    assert_sentence(run("reproduce", "depth"), "none of the paper's datasets is at hand", "--quick")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("publications", "--epochs", "5"), "runs the settings as they are: leave --epochs out"),
        (("depth", "--systems", "gat"), "--systems is for the targets peers, contenders, study"),
        (("peers", "--epochs", "0"), "epochs is 0: expected 1 or more"),
    ],
)
def test_what_reproduce_refuses(run, arguments, sentence):
    assert_sentence(run("reproduce", *arguments), sentence)


# ------------------------------------------------------------------------------- the view


def test_the_view_shows_what_runs_what_is_left_and_what_failed(capsys):
    from rich.console import Console

    specs = [spec(seed=seed) for seed in range(4)]
    view = RunsView(quiet=False)
    view(Planned(4, 0, 0))
    for one in specs:
        view(Event("started", one))
    view.start -= 180
    view(Event("finished", specs[0], graded_record(specs[0])))
    view(Event("failed", specs[2], error="the loss became [nan]"))
    view(Event("put off", specs[3], error="the GPU is full"))
    console = Console(width=120, record=True)
    console.print(view._picture())
    text = console.export_text()
    assert "2/4" in text
    assert "about 3 min left" in text
    assert "1 failed" in text
    assert "seed 1" in text
    assert all(f"seed {number}" not in text for number in (0, 2, 3))
    lines = capsys.readouterr().err
    assert "4 runs, 0 of them already in the store" in lines
    assert "1/4  csbm authors  deepgat dp L=2  seed 0  val 88.00  test 90.00" in lines
    assert "seed 2  failed: the loss became [nan]" in lines
    assert "seed 3  put off: the GPU is full" in lines


def test_durations():
    assert [duration(s) for s in (5, 99, 100, 3600, 3 * 3600 + 300)] == [
        "5 s", "99 s", "2 min", "60 min", "3 h 05 min"
    ]  # fmt: skip
