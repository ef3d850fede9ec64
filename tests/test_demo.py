"""The demonstration, with few epochs; its words and its figure."""

import matplotlib.image
import pytest

from deepgat import demo
from deepgat.demo import DepthPoint, demo_recipe, explain, run_demo
from deepgat.figures import depth_figure, save_figure
from deepgat.models import GATConfig
from deepgat.training.recipes import Recipe


@pytest.fixture
def quick(monkeypatch) -> None:
    original = demo_recipe

    def few_epochs(model: str, layers: int) -> Recipe:
        made = original(model, layers)
        few = made.training.with_changes({"epochs": 2, "device": "cpu"})
        return made._replace(training=few)

    monkeypatch.setattr(demo, "demo_recipe", few_epochs)


def test_both_models_are_trained_at_every_depth(quick):
    watched = []

    def watch(model: str, layers: int, number: int):
        return lambda epoch: watched.append((model, layers, number, epoch.number))

    data, points = run_demo(depths=(2,), seeds=(0, 1), watch=watch)
    assert data.name == "csbm"
    assert [(point.model, point.layers) for point in points] == [("GAT", 2), ("DeepGAT", 2)]
    for point in points:
        assert 0 < point.test_f1 <= 1
        assert 0 < point.val_f1 <= 1
        assert 0 < point.train_f1 <= 1
        assert point.seconds > 0
    assert watched == [
        (model, 2, number, epoch)
        for model, number in (("GAT", 1), ("GAT", 2), ("DeepGAT", 3), ("DeepGAT", 4))
        for epoch in (1, 2)
    ]


def test_the_demo_ends_with_an_interrupt(quick):
    def watch(model: str, layers: int, number: int):
        def interrupt(epoch) -> None:
            raise KeyboardInterrupt

        return interrupt

    with pytest.raises(KeyboardInterrupt):
        run_demo(depths=(2,), watch=watch)


def test_both_models_have_one_setting_at_every_depth():
    for layers in demo.DEPTHS:
        gat, deepgat = demo_recipe("gat", layers), demo_recipe("deepgat", layers)
        assert gat.training == deepgat.training
        assert gat.settings.num_layers == layers
        for name in GATConfig.kinds():  # all that GAT has, DeepGAT has too
            assert getattr(gat.settings, name) == getattr(deepgat.settings, name), name


def point(model: str, layers: int, test: float, val: float | None = None) -> DepthPoint:
    return DepthPoint(model, layers, test, test if val is None else val, test, 1.0)


@pytest.mark.parametrize(
    ("deep", "verdict"),
    [(0.10, "collapses"), (0.70, "collapses"), (0.80, "loses"), (0.94, "keeps its score")],
)
def test_the_words_follow_the_numbers(deep, verdict):
    text = explain([point("GAT", 2, 0.95), point("GAT", 15, deep)])
    assert f"GAT {verdict}: 95.0% at 2 layers" in text
    assert f"{100 * deep:.1f}% at 15" in text
    for other in {"collapses", "loses", "keeps its score"} - {verdict}:
        assert f"GAT {other}" not in text


def test_each_model_has_its_own_verdict():
    points = [point("GAT", 2, 0.95), point("GAT", 15, 0.1)]
    points += [point("DeepGAT", 2, 0.95), point("DeepGAT", 15, 0.95)]
    text = explain(points)
    assert "GAT collapses" in text
    assert "DeepGAT keeps its score" in text
    assert "\n" not in text


def test_the_best_depth_is_chosen_on_validation_nodes():
    text = explain(
        [point("GAT", 2, 0.90, 0.91), point("GAT", 4, 0.99, 0.80), point("GAT", 8, 0.89, 0.70)]
    )
    assert "90.0% at 2 layers" in text
    assert "99.0%" not in text
    assert "keeps its score" in text


def test_a_model_that_gains_with_depth_keeps_its_score():
    assert "keeps its score: 96.0% at 15" in explain([point("A", 2, 0.9), point("A", 15, 0.96)])


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
    figure.savefig = lambda path: (_ for _ in ()).throw(OSError("no space left"))
    with pytest.raises(OSError, match="no space left"):
        save_figure(figure, tmp_path / "depth.png")
    assert list(tmp_path.iterdir()) == []
