"""How frequent classes are among unlabelled nodes, and what is made of it."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepgat.training.class_shares import POWERS, class_factors, class_shares


def drawn(shares, n=4000, seed=0, spread=1.0, given_=20, val=40):
    """Labels with these shares, right probabilities if classes were equally frequent, and parts."""
    draw = torch.Generator().manual_seed(seed)
    classes = len(shares)
    y = torch.multinomial(torch.tensor(shares), n, True, generator=draw)
    centres = 2 * torch.eye(classes)
    x = centres[y] + spread * torch.randn(n, classes, generator=draw)
    logits = -torch.cdist(x, centres).square() / (2 * spread**2)
    train, held = torch.zeros(2, n, dtype=torch.bool)
    for c in range(classes):
        mine = (y == c).nonzero()[:, 0]
        train[mine[:given_]] = True
        held[mine[given_ : given_ + val]] = True
    return logits.softmax(-1), y, train, held


def literal(shares, y, train, val):
    """The factors of two classes, step by step, with numpy."""
    p, y = shares.double().numpy(), y.numpy()
    mine = [p[v] for v in range(len(y)) if not train[v] and not val[v]]
    known = [(p[v], y[v]) for v in range(len(y)) if val[v]]
    target = sum(mine) / len(mine)
    means = []
    for c in range(2):
        of_c = [row for row, label in known if label == c]
        means.append((sum(of_c) + np.eye(2)[c]) / (len(of_c) + 1))
    apart = means[0] - means[1]
    first = np.clip((target - means[1]) @ apart / (apart @ apart), 0.001, 0.999)
    pi = np.array([first, 1 - first])
    labels = np.array([label for _, label in known])
    of_val = np.bincount(labels, minlength=2) / len(labels)
    of_train = np.bincount(y[train.numpy()], minlength=2) / int(train.sum())
    weights = [pi[label] / of_val[label] for label in labels]
    losses = []
    for power in POWERS:
        changed = [row * (pi / of_train) ** power for row, _ in known]
        right = [row[label] / row.sum() for row, label in zip(changed, labels, strict=True)]
        losses.append(np.array([-w * np.log(r) for w, r in zip(weights, right, strict=True)]))
    best = min(losses, key=np.mean)
    for power, loss in zip(POWERS, losses, strict=True):
        gap = loss - best
        if gap.mean() <= gap.std() / len(gap) ** 0.5:
            factors = (pi / of_train) ** power
            kinds = [len({int((row * f).argmax()) for row in mine}) for f in (np.ones(2), factors)]
            return list(factors) if power and kinds[1] == kinds[0] else []
    raise AssertionError


@given(first=st.floats(0.1, 0.9), seed=st.integers(0, 10**6), spread=st.floats(0.5, 2))
def test_factors_are_those_of_the_formula(first, seed, spread):
    case = drawn([first, 1 - first], 600, seed, spread)
    assert class_factors(*case) == pytest.approx(literal(*case), rel=5e-3)


@pytest.mark.parametrize("shares", [[0.7, 0.2, 0.1], [0.6, 0.1, 0.1, 0.1, 0.1]])
def test_shares_are_found_from_few_labels_of_each_class(shares):
    p, y, train, val = drawn(shares, 20_000)
    found = class_shares(p[~train], p[val], y[val])
    true = torch.bincount(y[~train], minlength=len(shares)) / (~train).sum()
    equal = torch.full_like(true, 1 / len(shares))
    assert float(found.sum()) == pytest.approx(1)
    assert (found - true).abs().sum() < 0.3 * (equal - true).abs().sum()


def test_they_help_where_labels_were_drawn_by_class():
    gains = []
    for seed in range(5):
        p, y, train, val = drawn([0.8, 0.15, 0.05], seed=seed)
        rest = ~(train | val)
        factors = torch.tensor(class_factors(p, y, train, val))
        assert factors[0] > 1 > factors[2]
        right = ((p * factors).argmax(1) == y)[rest].double().mean()
        gains.append(float(right - (p.argmax(1) == y)[rest].double().mean()))
    assert min(gains) > 0.005


def test_they_are_none_where_labels_were_not_drawn_by_class():
    p, y, train, val = drawn([0.8, 0.15, 0.05])
    assert class_factors(p, y, train, val)
    more = ((y == 0) & ~val).nonzero()[:25, 0]  # 25 of the first class, 20 of the others
    train[more] = True
    assert class_factors(p, y, train, val) == []


def test_they_are_close_to_one_where_classes_are_equally_frequent():
    for seed in range(10):
        p, y, train, val = drawn([1 / 3] * 3, seed=seed)
        factors = torch.tensor(class_factors(p, y, train, val) or [1.0])
        assert float(factors.log().abs().max()) < 0.15
        change = ((p * factors).argmax(1) == y).double() - (p.argmax(1) == y).double()
        assert float(change.mean()) > -0.005


def test_no_class_loses_all_its_predictions():
    y = torch.tensor([0, 1] * 40 + [0] * 400)
    train, val = torch.arange(480) < 30, (torch.arange(480) >= 30) & (torch.arange(480) < 80)
    p = torch.where((y == 0)[:, None], torch.tensor([0.7, 0.3]), torch.tensor([0.45, 0.55]))
    p[80] = torch.tensor([0.49, 0.51])  # the only one that is thought to be of the second class
    assert class_factors(p, y, train, val) == []


def test_predictions_that_are_no_numbers():
    p, y, train, val = drawn([0.8, 0.15, 0.05])
    p[-1] = float("nan")
    assert class_factors(p, y, train, val) == []


@pytest.mark.parametrize("missing", ["of validation", "of training"])
def test_too_few_nodes_of_a_class(missing):
    p, y, train, val = drawn([0.8, 0.15, 0.05])
    assert class_factors(p, y, train, val)
    if missing == "of training":
        train &= y != 1
    else:
        val[(y == 1).nonzero()[:, 0]] &= False
        val[((y == 1) & ~train).nonzero()[:9, 0]] = True
    assert class_factors(p, y, train, val) == []


def test_labels_of_other_nodes_are_not_read():
    p, y, train, val = drawn([0.8, 0.15, 0.05])
    hidden = torch.where(train | val, y, -1)
    assert class_factors(p, hidden, train, val) == class_factors(p, y, train, val)


def test_predictions_that_say_nothing():
    for p in (torch.full((4000, 3), 1 / 3), torch.eye(3)[torch.zeros(4000, dtype=torch.long)]):
        _, y, train, val = drawn([0.8, 0.1, 0.1])
        factors = class_factors(p, y, train, val)
        assert all(np.isfinite(factors))


def test_powers_start_with_nothing_done():
    assert POWERS[0] == 0
    assert all(a < b for a, b in itertools.pairwise(POWERS))
