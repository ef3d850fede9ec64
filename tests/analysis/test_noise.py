"""The noise of dropout: against its closed form, and growing as the recipe's page says."""

from __future__ import annotations

import pytest
import torch

from deepgat.analysis import noise_by_layer
from deepgat.errors import UserError
from deepgat.inputs import prepare
from deepgat.nn import build_model
from deepgat.recipes import recipe
from tiny import tiny_dataset


def test_one_layer_of_dropout_has_its_closed_form():
    """Dropped with p and kept with 1/(1−p): Var = p/(1−p) h², of a mean of k equal terms /k."""
    h = torch.ones(3, 400, dtype=torch.float64)

    def states():
        keep = (torch.rand(5, 3, 400) > 0.6).double() / 0.4
        return [keep[0] * h, keep.mean(0) * h]

    torch.manual_seed(0)
    alone, averaged = noise_by_layer(states, 200)
    torch.testing.assert_close(alone, torch.full_like(alone, 1.5), rtol=0.1, atol=0)
    torch.testing.assert_close(averaged, torch.full_like(averaged, 0.3), rtol=0.1, atol=0)


def test_large_means_do_not_drown_it():
    torch.manual_seed(0)
    draws = [1e6 + torch.rand(2, 50, dtype=torch.float64) for _ in range(20)]
    expected = torch.stack(draws).var(0).sum(1) / torch.stack(draws).mean(0).square().sum(1)
    left = iter(draws)
    (found,) = noise_by_layer(lambda: [next(left)], 20)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_it_grows_with_depth_and_less_with_less_dropout():
    data = tiny_dataset()

    def noise(**choices):
        plan = recipe("deep", layers=24, hidden=16, step_depth=0, input_dropout=0.0, **choices)
        torch.manual_seed(0)
        model = build_model(plan.model, data.num_features, data.num_classes).train()
        graph = prepare(model, data, torch.device("cpu"))[0]
        return noise_by_layer(lambda: graph.run(model).hidden, 100).nanmedian(1).values

    usual = noise(initial_residual=0.1)
    assert usual[23] > usual[3]
    assert noise(initial_residual=0.3)[23] < usual[23]
    assert noise(initial_residual=0.1, dropout=0.2)[23] < usual[23]


def test_one_draw_is_refused():
    with pytest.raises(UserError, match="draws is 1: expected 2 or more"):
        noise_by_layer(lambda: [], 1)
