"""Splits: the grammar, the authors' procedure to the node, and the global random state."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepgat.data import Split, parse_split
from deepgat.data.splits import draw_masks
from deepgat.errors import UserError

LABELS = torch.randint(0, 5, (700,), generator=torch.Generator().manual_seed(7))


def literal_procedure(y: torch.Tensor, seed: int, train: int, val: int) -> list[list[int]]:
    """The authors' code, global seed and all."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts: list[list[int]] = [[], [], []]
        for c in range(int(y.max()) + 1):
            index = (y == c).nonzero().view(-1)
            index = index[torch.randperm(len(index))]
            parts[0] += index[:train].tolist()
            parts[1] += index[train : train + val].tolist()
            parts[2] += index[train + val :].tolist()
    return [sorted(part) for part in parts]


def drawn(text: str, y: torch.Tensor = LABELS) -> list[list[int]]:
    return [mask.nonzero().view(-1).tolist() for mask in draw_masks(parse_split(text), y)]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("public", "public"),
        (" Authors ", "authors"),
        ("random", "random:0:20/30"),
        ("random:3", "random:3:20/30"),
        ("random:3:5/007", "random:3:5/7"),
        ("fractions:.60/0.2", "fractions:0.6/0.2:0"),
        ("fractions:0.6/0.4:12", "fractions:0.6/0.4:12"),
        ("stored:9", "stored:9"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    split = parse_split(text)
    assert str(split) == canonical
    assert parse_split(canonical) == split
    assert hash(parse_split(canonical)) == hash(split)


@given(st.integers(0, 10**18 - 1), st.integers(0, 999), st.integers(0, 999))
def test_random_text_round_trip(seed: int, train: int, val: int) -> None:
    split = Split("random", seed, train, val)
    assert parse_split(str(split)) == split


@given(st.integers(0, 99), st.floats(0, 0.5), st.floats(0, 0.5))
def test_fractions_text_round_trip(seed: int, train: float, val: float) -> None:
    split = Split("fractions", seed, train, val)
    assert parse_split(str(split)) == split


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("publik", "unknown split 'publik': did you mean 'public'"),
        ("", "unknown split ''"),
        ("0.6", r"cannot read the split '0\.6': write fractions:TRAIN/VAL"),
        ("60/20/20", "cannot read the split '60/20/20': write fractions:TRAIN/VAL"),
        ("random:x", r"cannot read the split 'random:x': write random\[:SEED\[:TRAIN/VAL\]\] with"),
        ("random:-1", "whole numbers"),
        ("random:0:20", "whole numbers"),
        ("random:0:20/30/50", "whole numbers"),
        ("random:0:20/30:1", "whole numbers"),
        ("random:0:2.5/3", "whole numbers"),
        ("random:99999999999999999999", "whole numbers"),
        ("random:٣", "whole numbers"),
        ("fractions", "write fractions:TRAIN/VAL.*shares from 0 to 1"),
        ("fractions:0.6/nan", "shares from 0 to 1"),
        ("fractions:1.2/0.1", "more than 1"),
        ("fractions:0.9/0.2", "more than 1"),
        ("stored", "write stored:K"),
        ("stored:one", "whole number"),
        ("authors:3", "write authors"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        parse_split(text)
    assert "\n" not in str(caught.value)


def test_authors_split_is_the_literal_procedure() -> None:
    assert drawn("authors") == literal_procedure(LABELS, 42, 20, 30)
    assert drawn("authors") == drawn("random:42:20/30")


def test_random_split_is_the_same_procedure_with_its_seed() -> None:
    assert drawn("random:5:7/11") == literal_procedure(LABELS, 5, 7, 11)
    assert drawn("random:5") == drawn("random:5")
    assert drawn("random:5") != drawn("random:6")


@pytest.mark.parametrize("text", ["authors", "random:3", "fractions:0.6/0.2:1"])
def test_global_random_state_is_left_alone(text: str) -> None:
    before = torch.get_rng_state()
    first = drawn(text)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert drawn(text) == first, "the split depends on the global random state"


@pytest.mark.parametrize("text", ["authors", "random:1:3/4", "fractions:0.6/0.2"])
def test_unlabelled_nodes_are_in_no_mask(text: str) -> None:
    y = LABELS.clone()
    y[::3] = -1
    masks = torch.stack(draw_masks(parse_split(text), y)).sum(dim=0)
    assert torch.equal(masks, (y >= 0).long())


def test_a_small_class_fills_training_first() -> None:
    y = torch.tensor([0] * 100 + [1] * 25 + [2] * 7 + [4])  # class 3 has no member
    train, val, test = draw_masks(parse_split("random:0:20/30"), y)
    assert [int(train[y == c].sum()) for c in range(5)] == [20, 20, 7, 0, 1]
    assert [int(val[y == c].sum()) for c in range(5)] == [30, 5, 0, 0, 0]
    assert [int(test[y == c].sum()) for c in range(5)] == [50, 0, 0, 0, 0]


def test_fractions_are_stratified() -> None:
    train, val, test = draw_masks(parse_split("fractions:0.6/0.2:4"), LABELS)
    assert torch.equal(train.long() + val.long() + test.long(), torch.ones(700).long())
    assert (int(train.sum()), int(val.sum())) == (420, 140)
    for c in range(5):
        members = torch.eq(LABELS, c)
        assert abs(int(train[members].sum()) - 0.6 * int(members.sum())) <= 1
        assert abs(int(val[members].sum()) - 0.2 * int(members.sum())) <= 2


def test_fractions_deal_out_classes_of_one_member() -> None:
    train, val, test = draw_masks(parse_split("fractions:0.6/0.2"), torch.arange(100))
    assert (int(train.sum()), int(val.sum()), int(test.sum())) == (60, 20, 20)


def test_fractions_of_everything_leave_no_test_nodes() -> None:
    _, val, test = draw_masks(parse_split("fractions:0.7/0.3"), LABELS)
    assert int(test.sum()) == 0
    assert int(val.sum()) == 210


def test_several_labels_per_node() -> None:
    y = torch.ones(50, 3)
    train, val, test = draw_masks(parse_split("fractions:0.6/0.2"), y)
    assert (int(train.sum()), int(val.sum()), int(test.sum())) == (30, 10, 10)
    with pytest.raises(UserError, match="use fractions"):
        draw_masks(parse_split("authors"), y)
