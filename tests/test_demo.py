"""The demonstration, with few epochs; its words and its figure."""

import importlib

import matplotlib.image
import pytest

from deepgat.figures import depth_figure, save_figure
from deepgat.models import GATConfig
from deepgat.training.run import train_once

demo = importlib.import_module("deepgat.cli.demo")


@pytest.fixture
def quick(monkeypatch) -> None:
    original = demo.demo_recipe

    def few_epochs(model: str, layers: int):
        made = original(model, layers)
        few = made.training.with_changes({"epochs": 2, "device": "cpu"})
        return made._replace(training=few)

    monkeypatch.setattr(demo, "demo_recipe", few_epochs)
    monkeypatch.setattr(demo, "DEPTHS", (2,))
    monkeypatch.setattr(demo, "SEEDS", (0, 1))


def test_both_models_are_trained_at_every_depth(quick):
    curves = demo.train_both(quiet=True)
    assert list(curves) == ["GAT", "DeepGAT"]
    for curve in curves.values():
        assert list(curve) == [2]
        assert set(curve[2]) == {"train", "val", "test"}
        assert all(0 < score <= 1 for score in curve[2].values())


def test_the_demo_ends_with_an_interrupt(quick, monkeypatch):
    def interrupt(epoch) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train_once", lambda *given: train_once(*given, interrupt))
    with pytest.raises(KeyboardInterrupt):
        demo.train_both(quiet=True)


def test_both_models_have_one_setting_at_every_depth():
    for layers in demo.DEPTHS:
        gat, deepgat = demo.demo_recipe("gat", layers), demo.demo_recipe("deepgat", layers)
        assert gat.training == deepgat.training
        assert gat.settings.num_layers == layers
        for name in GATConfig.kinds():  # all that GAT has, DeepGAT has too
            assert getattr(gat.settings, name) == getattr(deepgat.settings, name), name


def explain(**curves: dict[int, float | tuple[float, float]]) -> str:
    """The words for {model: {layers: score, or (test, validation)}}."""
    found = {}
    for name, curve in curves.items():
        pairs = {k: v if isinstance(v, tuple) else (v, v) for k, v in curve.items()}
        found[name] = {k: {"train": t, "test": t, "val": v} for k, (t, v) in pairs.items()}
    return demo.explain(found)


@pytest.mark.parametrize(
    ("deep", "verdict"),
    [
        (0.10, "collapses"),
        (0.70, "collapses"),
        (0.80, "loses"),
        (0.94, "keeps its score"),
    ],
)
def test_the_words_follow_the_numbers(deep, verdict):
    text = explain(GAT={2: 0.95, 15: deep}, DeepGAT={2: 0.95, 15: 0.95})
    assert f" GAT {verdict}: 95.0% at 2 layers" in text
    assert f"{100 * deep:.1f}% at 15" in text
    for other in {"collapses", "loses", "keeps its score"} - {verdict}:
        assert f" GAT {other}" not in text
    assert "DeepGAT keeps its score" in text
    assert "\n" not in text


def test_the_best_depth_is_chosen_on_validation_nodes():
    text = explain(GAT={2: (0.90, 0.91), 4: (0.99, 0.80), 8: (0.89, 0.70)})
    assert "90.0% at 2 layers" in text
    assert "99.0%" not in text
    assert "keeps its score" in text


def test_a_model_that_gains_with_depth_keeps_its_score():
    assert "keeps its score: 96.0% at 15" in explain(A={2: 0.9, 15: 0.96})


def test_the_figure_has_a_line_per_model_through_its_numbers():
    curves = {"GAT": {15: 0.1, 2: 0.9}, "DeepGAT": {2: 0.8, 15: 0.7}}
    axes = depth_figure(curves, "A title", chance=0.1).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["GAT", "DeepGAT", "chance"]
    assert list(lines["GAT"].get_xdata()) == [2, 15]
    assert list(lines["GAT"].get_ydata()) == pytest.approx([90, 10])
    assert list(lines["chance"].get_ydata()) == pytest.approx([10, 10])
    assert axes.get_title(loc="left") == "A title"
    assert lines["GAT"].get_marker() != lines["DeepGAT"].get_marker()


def test_the_figure_is_written_whole(tmp_path):
    path = tmp_path / "deep" / "figures" / "depth.png"
    for chance in (0.1, None):  # the second replaces the first
        figure = depth_figure({"GAT": {2: 0.9, 4: 0.5}}, "A title", chance)
        assert save_figure(figure, path) == path
        assert path.read_bytes().startswith(b"\x89PNG")
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[:2] == (600, 960)
        assert pixels.min() < 0.5 < pixels.max()
        assert [inner.name for inner in path.parent.iterdir()] == ["depth.png"]


def test_a_figure_that_cannot_be_drawn_leaves_nothing(tmp_path):
    figure = depth_figure({"GAT": {2: 0.9}}, "A title $")
    figure.savefig = lambda *_, **__: (_ for _ in ()).throw(OSError("no space left"))
    with pytest.raises(OSError, match="no space left"):
        save_figure(figure, tmp_path / "depth.png")
    assert list(tmp_path.iterdir()) == []
