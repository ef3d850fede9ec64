"""Graphs in memory that no model can use: each is refused in a sentence."""

import pytest
import torch
from torch_geometric.data import Data

import deepgat
from deepgat.errors import UserError


def graph(**changed: object) -> Data:
    part = torch.arange(12) % 3
    content = {
        "x": torch.eye(12),
        "edge_index": torch.stack([torch.arange(11), torch.arange(1, 12)]),
        "y": torch.arange(12) % 2,
        **{f"{name}_mask": part == k for k, name in enumerate(("train", "val", "test"))},
    }
    return Data(**{**content, **changed})


def train(data: Data, **options: object) -> deepgat.Model:
    return deepgat.fit(data, training={"epochs": 1, "device": "cpu"}, **options)


@pytest.mark.parametrize("model", ["gcn", "auto"])
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"x": torch.zeros(12, 0)}, "has no columns"),
        ({"x": torch.ones(12, 2, dtype=torch.complex64)}, r"convert it with x\.real\.float"),
        ({"x": torch.ones(12, 2, dtype=torch.int32)}, r"convert it with x\.float"),
        ({"y": torch.ones(12, dtype=torch.complex64)}, "expected .12. class numbers"),
        ({"y": torch.full((12,), 2**62)}, "classes are numbered from 0 to"),
        ({"y": torch.full((12, 2), 0.5)}, "labels other than 0 and 1 in train_mask"),
        ({"y": torch.full((12, 2), torch.nan)}, "labels other than 0 and 1 in train_mask"),
    ],
)
def test_what_no_model_can_use_is_refused(changed, sentence, model):
    with pytest.raises(UserError, match=sentence):
        train(graph(**changed), model=model)


def test_a_graph_without_nodes_is_refused():
    none = torch.zeros(0, dtype=torch.long)
    with pytest.raises(UserError, match="has no nodes"):
        train(Data(x=torch.zeros(0, 3), edge_index=none.view(2, 0), y=none), model="gcn")


def test_classes_without_nodes_are_told_and_cost_no_ranking():
    y = torch.arange(12) % 2
    y[0] = 999
    with pytest.warns(UserWarning, match="holds the class 999, but there are 12 nodes"):
        model = train(graph(y=y), model="gcn", num_layers=2, hidden_channels=4)
    assert model.metrics["roc_auc"]["test"] is not None
