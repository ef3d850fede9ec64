"""The training loop: what is the same twice, what is kept, what is never read, what is refused."""

import copy
import functools
import gc
import math
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import deepgat.training.loop
from deepgat.data import NodeDataset
from deepgat.errors import Diverged, UserError
from deepgat.models import APPNP, GCN, GCNII, SYSTEMS, Deep, Network, find_system
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.ops import Neighbors
from deepgat.training.device import choose_device
from deepgat.training.evaluate import evaluate
from deepgat.training.inputs import prepare
from deepgat.training.loop import train
from deepgat.training.recipes import Recipe, recipe
from deepgat.training.resume import Epoch
from deepgat.training.run import ModelCard, Run, train_once
from deepgat.training.settings import MONITORS, TrainSettings
from deepgat.training.trainer import make_optimizer, monitored
from tiny import tiny_dataset, tiny_labels

CPU = torch.device("cpu")
SMALL = {"hidden_channels": 4, "heads": 2, "dropout": 0.3}
PRESETS = [
    ("deepgat", "paper"),
    ("deepgat", "authors"),
    ("gat", "published"),
    ("gat", "paper"),
    ("gat", "authors"),
    ("gcn", None),
]


def plan(model: str = "deepgat", preset: str | None = None, **training) -> Recipe:
    """Ten fast epochs with dropout, so that random numbers matter; by default as the authors."""
    system = find_system(model)
    if preset is None and system.presets:
        preset = "authors"
    small = {name: value for name, value in SMALL.items() if name in system.config.kinds()}
    settings = recipe(model, preset=preset, **small).settings
    usual = {"lr": 0.02, "epochs": 10, "device": "cpu"}
    return Recipe(model, settings, TrainSettings(**usual | training))


def build(data: NodeDataset, recipe: Recipe) -> Network:
    return ModelCard.of(data, recipe).build()


def weights(model: Network) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_run(a: Run, b: Run) -> None:
    assert a.fitted.history == b.fitted.history
    assert a.fitted.best == b.fitted.best
    mine, theirs = weights(a.model), weights(b.model)
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


def changed(data: NodeDataset, **tensors: Tensor) -> NodeDataset:
    """The dataset with some tensors of its only graph replaced."""
    graph = copy.copy(data.graph)
    for name, tensor in tensors.items():
        graph[name] = tensor
    return replace(data, graphs=(graph,))


# ------------------------------------------------------------------------------ same numbers


@pytest.mark.parametrize(
    ("model", "preset"), [*PRESETS, ("oracle", "paper"), ("oracle", "authors")]
)
def test_the_same_seed_gives_the_same_bits(model, preset):
    data = tiny_dataset()
    first = train_once(data, plan(model, preset), seed=3)
    torch.manual_seed(99)  # whatever the caller did in between
    assert_same_run(first, train_once(data, plan(model, preset), seed=3))


def test_the_same_seed_gives_the_same_bits_on_many_graphs():
    data = tiny_labels()
    assert_same_run(train_once(data, plan(), seed=1), train_once(data, plan(), seed=1))


def test_another_seed_gives_other_numbers():
    data = tiny_dataset()
    first, other = train_once(data, plan(), seed=0), train_once(data, plan(), seed=1)
    assert first.fitted.history != other.fitted.history
    assert first.card.training.seed == 0
    assert other.card.training.seed == 1


def test_the_seed_of_fit_is_that_of_dropout():
    data = tiny_dataset()
    start = build(data, plan())
    losses = [
        [
            epoch.loss
            for epoch in train(copy.deepcopy(start), data, plan(seed=seed).training).history
        ]
        for seed in (0, 0, 1)
    ]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_the_random_numbers_of_the_caller_are_left_alone():
    data = tiny_dataset()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_once(data, plan())
    assert torch.equal(torch.rand(3), expected)


def test_the_random_numbers_of_the_caller_are_left_alone_when_training_fails():
    data = tiny_dataset()
    model = build(data, plan())
    before = torch.get_rng_state()
    with pytest.raises(UserError):
        train(model, data, plan(lr=1e20).training)
    assert torch.equal(torch.get_rng_state(), before)


def test_fit_leaves_the_dataset_as_it_was():
    data = tiny_dataset()
    before = {key: value.clone() for key, value in data.graph.to_dict().items()}
    train_once(data, plan())
    after = data.graph.to_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)


# ------------------------------------------------------------------------------- what is kept


@functools.cache
def overfitting(**training) -> tuple[Network, NodeDataset, deepgat.training.loop.FitResult]:
    """A run that overfits after a few epochs: its validation nodes have wrong classes."""
    data = tiny_dataset()
    wrong = torch.where(data.graph.val_mask, (data.graph.y + 1) % 3, data.graph.y)
    data = changed(data, y=wrong)
    recipe = plan("gat", "paper", **{"lr": 0.1, "epochs": 40} | training)
    model = build(data, recipe)
    return model, data, train(model, data, recipe.training)


@pytest.mark.parametrize(
    ("monitor", "value"),
    [
        ("val-loss", lambda epoch: epoch.val_loss),
        ("val-f1", lambda epoch: -epoch.val_f1),
        ("train-loss", lambda epoch: epoch.loss),
    ],
)
def test_the_weights_of_the_first_best_epoch_are_restored(monitor, value):
    model, data, fitted = overfitting(monitor=monitor)
    best = min(fitted.history, key=value)  # the first of equals
    assert fitted.best == best
    assert best.number < len(fitted.history), "the last epoch was the best: nothing to restore"
    assert fitted.history[-1].val_loss != best.val_loss
    evaluation = evaluate(model, data, "cpu")
    assert evaluation.loss["val"] == best.val_loss
    assert evaluation.micro_f1["val"] == best.val_f1


def test_what_each_monitor_compares():
    early, late = Epoch(1, 0.9, 0.30, 0.90), Epoch(2, 0.5, 0.32, 0.94)
    better = {name: monitored(late, name) < monitored(early, name) for name in MONITORS}
    assert better == {
        "val-loss": False,
        "loss-and-errors": True,
        "val-f1": True,
        "train-loss": True,
    }


def test_loss_and_errors_divides_by_the_best_temperature():
    plain = overfitting(monitor="val-loss")[2].history
    calibrated = overfitting(monitor="loss-and-errors")[2].history
    gaps = [a.val_loss - b.val_loss for a, b in zip(plain, calibrated, strict=True)]
    assert min(gaps) >= -1e-12
    assert max(gaps) > 0.1


def test_the_monitors_choose_different_epochs():
    chosen = {overfitting(monitor=name)[2].best.number for name in MONITORS}
    assert len(chosen) > 1


def test_training_stops_after_patience_epochs_without_improvement():
    _, _, fitted = overfitting(patience=4)
    assert fitted.stopped == "patience"
    assert len(fitted.history) == fitted.best.number + 4
    assert [epoch.number for epoch in fitted.history] == list(range(1, len(fitted.history) + 1))


def test_training_stops_at_the_most_epochs():
    _, _, fitted = overfitting(epochs=3)
    assert fitted.stopped == "epochs"
    assert len(fitted.history) == 3
    assert fitted.seconds > 0


def test_every_epoch_is_shown_and_names_the_best_so_far():
    data = tiny_dataset()
    seen: list[Epoch] = []
    recipe = plan("gat", "paper", lr=0.1, epochs=20)
    fitted = train(build(data, recipe), data, recipe.training, seen.append)
    assert seen == fitted.history
    for count, epoch in enumerate(seen, start=1):
        assert epoch.best_number == min(seen[:count], key=lambda e: e.val_loss).number


@pytest.mark.parametrize("model", ["deepgat", "deep"])
def test_nothing_of_a_run_waits_for_the_garbage_collector(model, monkeypatch):
    """On a GPU that would be its memory."""
    seen = []

    class Watched(deepgat.training.loop.Trainer):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            seen.extend(weakref.ref(item) for item in (self, self.optimizer))

    monkeypatch.setattr(deepgat.training.loop, "Trainer", Watched)
    gc.collect()
    gc.disable()
    try:
        train_once(tiny_dataset(), plan(model), 0)
        assert [item() for item in seen] == [None, None]
    finally:
        gc.enable()


def test_training_learns():
    data = tiny_dataset()
    run = train_once(data, plan(epochs=60))
    assert run.fitted.history[-1].loss < 0.7 * run.fitted.history[0].loss
    assert run.evaluation.micro_f1["test"] > 0.6  # chance is a third


def test_many_graphs_of_many_labels_train():
    data = tiny_labels()
    run = train_once(data, plan(epochs=40, lr=0.04))
    assert run.fitted.history[-1].loss < 0.8 * run.fitted.history[0].loss
    assert [logits.shape for logits in run.evaluation.logits] == [(12 + i, 4) for i in range(4)]
    untrained = evaluate(build(data, plan()), data, "cpu")
    assert run.evaluation.micro_f1["val"] > untrained.micro_f1["val"]


def test_every_graph_with_training_nodes_takes_one_step_per_epoch(monkeypatch):
    steps = []
    monkeypatch.setattr(
        torch.optim.Adam, "step", lambda self: steps.append(1), raising=True
    )  # weights stay
    data = tiny_labels(graphs=5)
    train(build(data, plan()), data, plan(epochs=4).training)
    assert len(steps) == 4 * 3  # the last two graphs validate and test


def test_scores_are_over_the_nodes_of_all_graphs_together():
    data = tiny_labels()
    everywhere = [copy.copy(graph) for graph in data.graphs]
    for graph in everywhere:
        graph.val_mask = torch.ones(graph.num_nodes, dtype=torch.bool)
        graph.train_mask = graph.test_mask = ~graph.val_mask
    data = replace(data, graphs=tuple(everywhere))
    evaluation = evaluate(build(data, plan()), data, "cpu")
    logits = torch.cat(evaluation.logits)
    y = torch.cat([graph.y for graph in data.graphs])
    predicted, true = logits > 0, y > 0
    f1 = 2 * (predicted & true).sum() / (predicted.sum() + true.sum())
    assert evaluation.micro_f1["val"] == pytest.approx(f1.item())
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y)
    assert evaluation.loss["val"] == pytest.approx(loss.item(), rel=1e-6)


def test_a_part_without_nodes_has_no_score():
    data = tiny_dataset()
    data = changed(data, test_mask=torch.zeros(60, dtype=torch.bool))
    evaluation = evaluate(build(data, plan()), data, "cpu")
    assert set(evaluation.micro_f1) == set(evaluation.loss) == {"train", "val"}


def test_sparse_features_train_like_dense_ones():
    data = tiny_dataset(sparse=True)
    dense = changed(data, x=data.graph.x.to_dense())
    recipe = plan()
    settings = replace(recipe.settings, dropout=0.0, attention_dropout=0.0)
    recipe = recipe._replace(settings=settings)
    histories = [train_once(each, recipe).fitted.history for each in (data, dense)]
    for a, b in zip(*histories, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-3)


def test_bf16_on_a_cpu_is_float32():
    data = tiny_dataset()
    float32, bf16 = (train_once(data, plan(precision=name)) for name in ("float32", "bf16"))
    assert float32.fitted.history == bf16.fitted.history


# ------------------------------------------------------------------------- what is never read


@pytest.mark.parametrize(("model", "preset"), PRESETS)
def test_test_labels_are_never_read_in_training(model, preset):
    data = tiny_dataset()
    y = data.graph.y.clone()
    hidden = data.graph.test_mask.nonzero().squeeze(1)
    y[hidden[::2]], y[hidden[1::2]] = -1, 10**6
    recipe = plan(model, preset)
    fitted, weights_after = [], []
    for each in (data, changed(data, y=y)):
        trained = build(each, recipe)
        fitted.append(train(trained, each, recipe.training))
        weights_after.append(weights(trained))
    assert fitted[0].history == fitted[1].history
    assert all(
        torch.equal(weights_after[0][name], weights_after[1][name]) for name in weights(trained)
    )


def test_test_labels_of_many_labels_are_never_read_in_training():
    data = tiny_labels()
    garbled = [copy.copy(graph) for graph in data.graphs]
    garbled[-1].y = torch.full_like(garbled[-1].y, math.nan)
    other = replace(data, graphs=tuple(garbled))
    histories = [
        train(build(each, plan()), each, plan().training).history for each in (data, other)
    ]
    assert histories[0] == histories[1]


def test_validation_labels_choose_the_epoch_but_train_nothing():
    data = tiny_dataset()
    y = data.graph.y.clone()
    y[data.graph.val_mask] = (y[data.graph.val_mask] + 1) % 3
    first, other = (
        train(build(each, plan()), each, plan().training).history
        for each in (data, changed(data, y=y))
    )
    assert [epoch.loss for epoch in first] == [epoch.loss for epoch in other]
    assert [epoch.val_loss for epoch in first] != [epoch.val_loss for epoch in other]


def test_only_the_oracle_is_shown_labels():
    data = tiny_dataset()
    for name in ("deepgat", "gat", "gcn"):
        assert not build(data, plan(name)).needs_labels
    assert build(data, plan("oracle")).needs_labels


def test_label_features_are_prepared_as_the_model_wants_them():
    data = tiny_dataset()
    counts, zero = plan("deepgat", "authors"), plan("deepgat", "paper")
    for each, empty in ((counts, False), (zero, True)):
        (inputs,) = prepare(build(data, each), data, CPU)
        assert inputs.label_features.shape == (60, 2, 3)  # two layers see them
        assert (inputs.label_features[:, 0] == 0).all() == empty
    (inputs,) = prepare(build(data, plan("gat")), data, CPU)
    assert inputs.label_features is None


# --------------------------------------------------------------------------------- divergence


def test_a_diverging_loss_is_told_with_layer_and_epoch():
    data = tiny_dataset()
    with pytest.raises(UserError, match=r"at epoch \d+: layer \d of 2 .* lower the learning rate"):
        train_once(data, plan("gat", "paper", lr=1e20))


def test_features_that_overflow_are_told_at_once():
    data = tiny_dataset()
    x = data.graph.x.clone()
    x[data.graph.train_mask] = 3e38
    with pytest.raises(Diverged, match="loss became nan at epoch 1: layer 1 of 2 is the first"):
        train_once(changed(data, x=x), plan())


def test_a_validation_loss_that_is_not_finite_is_told():
    """A lone validation node with broken features: the training loss itself stays finite."""
    data = tiny_dataset()
    node = int(data.graph.val_mask.nonzero()[0])
    edge_index = data.graph.edge_index
    edge_index = edge_index[:, (edge_index != node).all(0)]
    x = data.graph.x.clone()
    x[node] = 3e38
    with pytest.raises(Diverged, match="validation loss became nan at epoch 1: layer 1 of 2"):
        train_once(changed(data, x=x, edge_index=edge_index), plan())


# ------------------------------------------------------------------------------- interruption


def test_an_interrupt_keeps_the_best_weights_so_far():
    data = tiny_dataset()

    def interrupt(epoch: Epoch) -> None:
        if epoch.number == 5:
            raise KeyboardInterrupt

    model = build(data, plan())
    fitted = train(model, data, plan().training, interrupt)
    assert fitted.stopped == "interrupted"
    whole = train(build(data, plan()), data, plan().training)
    assert fitted.history == whole.history[:5]
    assert fitted.best == min(fitted.history, key=lambda epoch: epoch.val_loss)
    assert evaluate(model, data, "cpu").loss["val"] == fitted.best.val_loss


class InterruptAt:
    """A hook that stands for Ctrl-C at the n-th time something is called."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def interrupt_layer_2(model: Network, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when the second layer runs for the n-th time; every epoch runs it twice."""
    conv, interrupt = model.convs[1], InterruptAt(call)
    run = conv.run

    def interrupted(*args, **named):
        interrupt()
        return run(*args, **named)

    monkeypatch.setattr(conv, "run", interrupted)


def test_an_interrupt_inside_an_epoch_drops_that_epoch(monkeypatch):
    data = tiny_dataset()
    model = build(data, plan())
    interrupt_layer_2(model, 7, monkeypatch)
    fitted = train(model, data, plan().training)
    monkeypatch.undo()
    assert fitted.stopped == "interrupted"
    assert [epoch.number for epoch in fitted.history] == [1, 2, 3]
    assert evaluate(model, data, "cpu").loss["val"] == fitted.best.val_loss


@pytest.mark.parametrize("call", [1, 2], ids=["training", "validation"])
def test_an_interrupt_in_the_first_epoch_has_nothing_to_keep(call, monkeypatch):
    data = tiny_dataset()
    model = build(data, plan())
    interrupt_layer_2(model, call, monkeypatch)
    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        train(model, data, plan().training)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupt_while_weights_are_set_aside_never_leaves_them_half_done(monkeypatch, call):
    data = tiny_dataset()
    model = build(data, plan())
    interrupt, copy_over = InterruptAt(call), torch._foreach_copy_

    def half(to: list[Tensor], source: list[Tensor]) -> None:
        copy_over(to[::2], source[::2])
        interrupt()
        copy_over(to, source)

    monkeypatch.setattr(torch, "_foreach_copy_", half)
    if call == 1:
        with pytest.raises(KeyboardInterrupt):
            train(model, data, plan().training)
        return
    fitted = train(model, data, plan().training)
    assert fitted.stopped == "interrupted"
    assert fitted.best.number == 1
    assert evaluate(model, data, "cpu").loss["val"] == fitted.best.val_loss


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": 0.0}, "lr is 0.0: expected a number above 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1: expected 0 or more"),
        ({"weight_decay": math.nan}, "weight_decay is nan"),
        ({"weight_decay_conv": -1.0}, "weight_decay_conv is -1.0: expected 0 or more"),
        ({"decay_nodes_heads": -1}, "decay_nodes_heads is -1: expected 0 or more"),
        ({"epochs": 0}, "epochs is 0: expected 1 or more"),
        ({"patience": -3}, "patience is -3: expected 1 or more"),
        ({"monitor": "val-los"}, "unknown monitor 'val-los': did you mean 'val-loss'"),
        ({"precision": "fp16"}, "unknown precision 'fp16': did you mean 'bf16'"),
    ],
)
def test_training_settings_refuse_nonsense(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        TrainSettings(**settings)
    with pytest.raises(UserError, match=sentence):
        TrainSettings().with_changes(settings)


def test_an_unknown_training_setting_is_told_with_the_nearest():
    with pytest.raises(
        UserError, match="training setting 'weight-decay': did you mean 'weight_decay'"
    ):
        recipe(training={"weight-decay": 0.1})


@pytest.mark.parametrize("name", ["nonsense", "cuda:99", "meta", "cpu:x", ""])
def test_a_device_that_cannot_be_used_is_told(name):
    with pytest.raises(UserError, match="cannot be used here: choose auto, cpu or cuda"):
        choose_device(name)


def test_auto_is_the_gpu_where_there_is_one():
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(("part", "name"), [("train", "training"), ("val", "validation")])
def test_a_dataset_without_nodes_to_train_or_choose_by_is_told(part, name):
    data = changed(tiny_dataset(), **{f"{part}_mask": torch.zeros(60, dtype=torch.bool)})
    with pytest.raises(UserError, match=f"Tiny has no {name} nodes"):
        train_once(data, plan())


def test_one_node_and_one_class_train():
    yes, no = torch.tensor([True, False]), torch.tensor([False, False])
    graph = Data(
        x=torch.ones(2, 1),
        edge_index=torch.zeros(2, 0, dtype=torch.long),
        y=torch.tensor([0, 0]),
        train_mask=yes,
        val_mask=~yes,
        test_mask=no,
    )
    data = NodeDataset("dot", "Dot", (graph,), 1, 1, False, "public")
    run = train_once(data, plan(epochs=2))
    assert run.evaluation.micro_f1 == {"train": 1.0, "val": 1.0}


# ------------------------------------------------------------------- weight decay and dropped edges


def test_convolutions_may_decay_differently():
    """Adam adds the decay to the gradient: without a gradient only what decays moves."""
    model = GCNII(6, 4, 2, 3)
    optimizer = make_optimizer(model, TrainSettings(weight_decay=0.0, weight_decay_conv=0.1), 10)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {f"maps.{i}.weight" for i in range(2)}


def test_one_decay_for_all_is_one_group_in_the_order_of_the_model():
    model = GCNII(6, 4, 2, 3)
    (group,) = make_optimizer(model, TrainSettings(weight_decay=0.1), 10).param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]
    assert group["weight_decay"] == 0.1


@pytest.mark.parametrize(
    ("given", "nodes", "decay"),
    [
        ({"weight_decay_conv": 0.1, "decay_nodes": 20}, 80, 0.025),
        ({"weight_decay_conv": 0.1, "decay_nodes": 20}, 20, 0.1),
        ({"weight_decay_conv": 0.1, "decay_nodes": 20}, 5, 0.1),  # never more
        ({"weight_decay_conv": 0.1}, 80, 0.1),
        ({"weight_decay": 0.2, "decay_nodes": 20}, 80, 0.05),
    ],
)
def test_convolutions_decay_less_on_more_nodes(given, nodes, decay):
    model = GCNII(6, 4, 2, 3)
    groups = make_optimizer(model, TrainSettings(**given), nodes).param_groups
    assert groups[-1]["weight_decay"] == pytest.approx(decay)
    assert groups[0]["weight_decay"] == TrainSettings(**given).weight_decay


@pytest.mark.parametrize(
    ("given", "layers", "decay"),
    [
        ({"weight_decay_conv": 0.1}, 8, 0.025),
        ({"weight_decay_conv": 0.1}, 2, 0.1),  # steps are whole
        ({"weight_decay": 0.2}, 8, 0.05),
        ({"weight_decay": 0.2}, 2, None),  # one group
    ],
)
def test_convolutions_of_smaller_steps_decay_less(given, layers, decay):
    model = Deep(6, 4, layers, 3, step_depth=2, attention_from=1)
    groups = make_optimizer(model, TrainSettings(**given), 10).param_groups
    assert [g["weight_decay"] for g in groups[1:]] == ([] if decay is None else [decay])
    assert groups[0]["weight_decay"] == TrainSettings(**given).weight_decay


@pytest.mark.parametrize(("layers", "decay"), [(2, 0.2), (8, 0.05)])
def test_class_heads_decay_less_in_smaller_steps(layers, decay):
    model = Deep(6, 4, layers, 3, step_depth=2, attention_from=1)
    settings = TrainSettings(weight_decay=0.2, weight_decay_conv=0.1, decay_nodes_heads=1)
    groups = make_optimizer(model, settings, 10**6).param_groups
    by_decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    heads = {id(p) for p in model.class_head_weights()}
    convolutions = {id(p) for p in model.convolution_weights()}
    assert heads
    assert convolutions
    for name, parameter in model.named_parameters():
        key = id(parameter)
        expected = decay if key in heads else decay / 2 if key in convolutions else 0.2
        assert by_decay[key] == pytest.approx(expected), name


@pytest.mark.parametrize(
    ("given", "nodes", "decay"),
    [
        ({}, 80, 0.2),  # as the rest
        ({"decay_nodes_heads": 40}, 80, 0.2 / 2),
        ({"decay_nodes_heads": 20}, 800, 0.2 / 4),  # no less than the step, 1/4
        ({"decay_nodes_heads": 40}, 10, 0.2),  # never more
        ({"decay_nodes": 40}, 80, 0.2),  # that is for convolutions
    ],
)
def test_class_heads_decay_by_the_step_as_far_as_nodes_allow(given, nodes, decay):
    model = Deep(6, 4, 8, 3, step_depth=2, attention_from=1)
    settings = TrainSettings(weight_decay=0.2, weight_decay_conv=0.3, **given)
    groups = make_optimizer(model, settings, nodes).param_groups
    by_decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    heads = [by_decay[id(p)] for p in model.class_head_weights()]
    assert heads == [pytest.approx(decay)] * len(heads)
    by_nodes = 40 / nodes if given.get("decay_nodes") else 1.0
    convolutions = [by_decay[id(p)] for p in model.convolution_weights()]
    assert convolutions == [pytest.approx(0.3 / 4 * by_nodes)] * len(convolutions)
    assert heads
    assert convolutions
    assert groups[0]["weight_decay"] == 0.2


def test_the_decay_of_convolutions_counts_the_nodes_of_the_data():
    data = tiny_dataset()
    half = data.num_nodes // 2
    given = [{"weight_decay_conv": 0.1, "decay_nodes": half},
             {"weight_decay_conv": 0.1 * half / data.num_nodes},
             {"weight_decay_conv": 0.1}]  # fmt: skip
    weights = []
    for settings in given:
        torch.manual_seed(0)
        model = GCNII(6, 4, 2, 3)
        train(model, data, TrainSettings(epochs=3, device="cpu", **settings))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_decay_of_class_heads_counts_the_nodes_of_the_data(monkeypatch):
    """4 layers go the way of 2, and more than half of the decay is left."""
    data, decays = tiny_dataset(), []

    class Watched(deepgat.training.loop.Trainer):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            heads = {id(p) for p in self.model.class_head_weights()}
            for group in self.optimizer.param_groups:
                if heads & {id(p) for p in group["params"]}:
                    decays.append(group["weight_decay"])

    monkeypatch.setattr(deepgat.training.loop, "Trainer", Watched)
    most = data.num_nodes - 1
    model = Deep(6, 4, 4, 3, step_depth=2, attention_from=1)
    settings = TrainSettings(epochs=1, device="cpu", weight_decay=0.25, decay_nodes_heads=most)
    train(model, data, settings)
    assert decays == [pytest.approx(0.25 * most / data.num_nodes)]


def test_a_model_without_convolution_weights_decays_as_a_whole():
    model = APPNP(6, 4, 2, 3)
    settings = TrainSettings(weight_decay=0.1, weight_decay_conv=0.2)
    (group,) = make_optimizer(model, settings, 10).param_groups
    assert group["weight_decay"] == 0.1


def test_edges_are_dropped_anew_in_every_epoch_and_in_training_only(monkeypatch):
    data, seen = tiny_dataset(), {True: [], False: []}
    model = GCN(6, 4, 2, 3, drop_edge=0.5)
    run = type(model).run

    def watched(self, x, neighbors, *rest):
        seen[self.training].append(neighbors.edge_index)
        return run(self, x, neighbors, *rest)

    monkeypatch.setattr(type(model), "run", watched)
    train(model, data, TrainSettings(epochs=4, device="cpu"))
    whole = Neighbors.from_edge_index(data.graph.edge_index, 60).edge_index
    assert len(seen[True]) == 4
    assert all(torch.equal(edges, whole) for edges in seen[False])
    assert all(edges.size(1) < whole.size(1) for edges in seen[True])
    assert len({tuple(edges.flatten().tolist()) for edges in seen[True]}) == 4


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != LABEL_PROPAGATION])
def test_every_system_learns_and_repeats_itself(name):
    """Two runs of one seed end in the same bits; DropEdge's draws are the seed's too."""
    data = tiny_dataset()
    whole = recipe(name, num_layers=3, training={"epochs": 8, "device": "cpu"})
    first, second = train_once(data, whole, 1), train_once(data, whole, 1)
    assert first.fitted.history[-1].val_loss < first.fitted.history[0].val_loss
    for a, b in zip(first.evaluation.logits, second.evaluation.logits, strict=True):
        assert torch.equal(a, b)
