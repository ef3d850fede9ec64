"""What the terminal shows: progress while a training runs, and tables."""

import importlib
import io

import pytest
from rich.console import Console

from deepgat.cli import show
from deepgat.data import load_graph
from deepgat.training.recipes import recipe
from deepgat.training.resume import Epoch
from deepgat.training.search import Request

RUNS = importlib.import_module("deepgat.cli.runs")


class EnoughError(Exception):
    """Ends a training run."""


@pytest.fixture
def terminal(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)
    monkeypatch.setattr(show, "ERR", console)
    return console


@pytest.mark.parametrize(
    ("number", "best", "counted"),
    [
        (12, 10, "12/110"),  # the best epoch and the patience that follows it
        (130, 10, "130/130"),  # a second stage, which has no best epoch of its own yet
        (190, 150, "190/200"),  # never beyond the last epoch
    ],
)
def test_the_bar_ends_where_training_would(terminal, monkeypatch, number, best, counted):
    def train(data, plan, seed, on_epoch, *more):
        on_epoch(Epoch(number, loss=0.5, val_loss=0.4, val_f1=0.875, best_number=best))
        raise EnoughError

    monkeypatch.setattr(RUNS, "train_once", train)
    plan = recipe(training={"epochs": 200, "patience": 100})
    with pytest.raises(EnoughError):
        RUNS.run_seeds(load_graph("csbm"), plan, RUNS.Output(None, [0]))
    text = terminal.file.getvalue()
    assert counted in text
    assert f"val F1 87.50  best epoch {best}" in text


def test_the_title_of_a_search_names_the_score_it_shows():
    found = {"system": "gcn", "training": {"monitor": "roc_auc"}}
    given = load_graph("csbm"), Request(), [found]
    assert RUNS._title(*given).startswith("roc_auc (%) of auto (gcn) on ")
    found["training"]["monitor"] = "val-loss"
    assert RUNS._title(*given).startswith("micro-F1 (%) of auto (gcn) on ")


def test_no_bar_where_nobody_looks(terminal):
    with show.progress_bar(quiet=True) as update:
        update("training", 0.5)
    terminal._force_terminal = False
    with show.progress_bar() as update:
        update("training", 0.5)
    assert not terminal.file.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_a_log_has_a_line_of_progress_now_and_then(terminal, monkeypatch, quiet):
    terminal._force_terminal = False
    clock = iter([0.0, 30.0, 61.0, 90.0, 130.0])
    monkeypatch.setattr(show.time, "monotonic", lambda: next(clock))
    with show.progress_bar(quiet) as update:
        for share in (0.1, 0.2, 0.3, 0.45):
            update("seed 0", share, "[1/9] deep")
    lines = ["20% done: seed 0  [1/9] deep", "45% done: seed 0  [1/9] deep"]
    assert terminal.file.getvalue().splitlines() == ([] if quiet else lines)


def test_a_narrow_terminal_shows_the_remark_whole(terminal):
    terminal.width = 80
    remark = "epoch 106/126  loss 0.634  val F1 97.00  best epoch 106"
    with show.progress_bar() as update:
        update("seed 0", 0.5, remark)
    assert remark in terminal.file.getvalue()


def test_sentences_name_the_option_that_reads_a_graph():
    told = "name the column with id=…, or read with missing=mean, missing=zero or drop=a"
    assert show.as_options(told) == (
        "name the column with --read id=…, or read with --read missing=mean, --read missing=zero "
        "or --read drop=a"
    )
    for same in ("add --read rare=unlabel", "/a/id=3/nodes.csv", "with num_layers=3", "x/id=3"):
        assert show.as_options(same) == same


def test_sentences_name_the_option_that_was_typed():
    told = "num_layers is 0: expected 1 or more"
    for typed in (["train", "cora", "--layers", "0"], ["train", "--layers=0"]):
        assert show.as_options(told, typed) == "--layers is 0: expected 1 or more"
    for typed in ([], ["train", "--config", "own.toml"], ["train", "layers"]):
        assert show.as_options(told, typed) == told
    assert show.as_options("the seed is odd", ["--seeds"]) == "the seed is odd"
    told = show.as_options("time_limit is 0.0: expected more", ["--time-limit", "0"])
    assert told == "--time-limit is 0.0: expected more"


PATH = f"/home/someone/{'x' * 120}/graph"
COLUMNS = ["run", "dataset", "split", "model", "L", "test", "val"]
ROWS = [
    ["ab12cd34", PATH, "fractions:0.6/0.2:0", "deepgat dp", "16", "98.12", "97.00"],
    ["1b12cd34", "3d cora", "public", "gcnii", "64", "–", "87.50 ± 0.12 (2/3)"],
]


@pytest.fixture
def out(monkeypatch, request):
    console = Console(
        file=io.StringIO(), force_terminal=True, width=request.param, color_system=None
    )
    monkeypatch.setattr(show, "OUT", console)
    return console


@pytest.mark.parametrize("out", [30, 60, 80, 100, 300], indirect=True)
def test_a_narrow_terminal_cuts_names_in_the_middle_and_never_a_score(out):
    show.print_table("micro-F1", COLUMNS, ROWS, ["mean", *[""] * 5, "92.25"])
    lines = out.file.getvalue().splitlines()
    first, second = (next(line for line in lines if row[0] in line) for row in ROWS)
    assert first.endswith("16  98.12               97.00")
    assert second.endswith("64      –  87.50 ± 0.12 (2/3)")
    assert "/ho" in first
    assert "raph  " in first
    assert ("…" in first) == (out.width < 300)
    assert "92.25" in lines[-1]
    if out.width >= 80:
        assert max(map(len, lines)) <= out.width


@pytest.mark.parametrize("out", [40], indirect=True)
def test_a_narrow_terminal_wraps_prose(out):
    show.print_table("", [], [["nodes", "a few words that are longer than the room for it"]])
    text = out.file.getvalue()
    assert "…" not in text
    assert " ".join(text.split()).startswith("nodes a few words that are longer than the room")


def test_a_pipe_gets_every_row_whole_on_a_line_of_its_own(capsys):
    rows = [*ROWS, ["two\nlines", "tab\there", "esc\x1b[31m", "", "", "", ""]]
    show.print_table("micro-F1 of\t2 runs", COLUMNS, rows, ["mean", *[""] * 6])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "# micro-F1 of\\t2 runs"
    assert [line.split("\t") for line in lines[:3]] == [COLUMNS, *ROWS]
    assert lines[3].split("\t")[:3] == ["two; lines", "tab\\there", "esc\\x1b[31m"]
    assert lines[4] == "mean" + "\t" * 6


def test_a_figure_shows_names_as_they_are_and_not_as_mathematics():
    from deepgat.figures import inspection_figure

    names = ["$a_", "$b^$", "c\0$\\frac$"]
    layers = {1: [[0.2, 0.3, 0.5]] * 3}
    figure = inspection_figure("Node $a_ of $g^^$", names, names, layers, [[0.2, 0.3, 0.5]], [1])
    figure.savefig(io.BytesIO(), dpi=20)  # mathematics like these would raise an error
    above = figure.axes[0]
    shown = [label.get_text().replace("\\$", "$") for label in above.get_yticklabels()]
    assert shown == ["$a_ (itself)", "$b^$", "c\\x00$\\frac$"]


@pytest.mark.parametrize("out", [80], indirect=True)
def test_prose_with_a_number_in_front_is_no_column_of_numbers(out):
    rows = [["a", "50% of the mean", "1.5"], ["b", "chosen", "–"], ["c", "left", "22.5"]]
    show.print_table("", ["name", "outcome", "val"], rows)
    lines = out.file.getvalue().splitlines()
    prose = [row[1] for row in rows]
    found = {line.index(text) for line in lines for text in prose if text in line}
    assert found == {lines[0].index("outcome")}
    assert lines[-1].endswith("22.5")
