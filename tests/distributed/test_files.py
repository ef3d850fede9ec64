"""Partitioned graphs on disk, and training from them."""

import json
from dataclasses import replace

import pytest
import torch

from deepgat.data import NodeDataset
from deepgat.data.transforms import MASKS
from deepgat.distributed import Team, owners, whole_labels
from deepgat.distributed.part_dataset import cut_dataset
from deepgat.distributed.partition_folder import is_partition, read_part, write_partition
from deepgat.errors import UserError
from deepgat.training.loop import train
from deepgat.training.recipes import recipe
from tiny import tiny_dataset, tiny_labels

from together import network_of, together

PLAN = recipe(
    "deepgat",
    preset="authors",
    num_layers=2,
    hidden_channels=4,
    heads=2,
    training={"epochs": 4, "device": "cpu"},
)


def fields_of(dataset: NodeDataset, folder, parts: int):
    found = [owners(g.edge_index, g.num_nodes, parts) for g in dataset.graphs]
    for number in range(parts):
        yield cut_dataset(dataset, found, number, parts), read_part(folder, number, parts)


def named_dataset() -> NodeDataset:
    """Like a graph from your files: names, and edges with weights and features."""
    data = tiny_dataset()
    graph = data.graph.clone()
    graph.edge_weight = torch.rand(graph.num_edges) + 0.5
    graph.edge_attr = torch.randn(graph.num_edges, 2)
    return replace(
        data,
        graphs=(graph,),
        node_ids=tuple(f"node {i}" for i in range(graph.num_nodes)),
        class_names=tuple(f"class {c}" for c in range(data.num_classes)),
        feature_names=tuple(f"feature {k}" for k in range(data.num_features)),
        reading={"missing": "mean"},
    )


@pytest.mark.parametrize(
    "data", [tiny_dataset(), tiny_dataset(sparse=True), tiny_labels(), named_dataset()]
)
def test_a_part_that_is_read_is_the_part_that_was_written(tmp_path, data):
    folder = tmp_path / "parts"
    assert not is_partition(folder)
    sizes = write_partition(folder, data, 3)
    assert is_partition(folder)
    assert sum(size.nodes for size in sizes) == sum(graph.num_nodes for graph in data.graphs)
    for expected, found in fields_of(data, folder, 3):
        assert (found.name, found.split, found.of) == (data.name, data.split, 3)
        for name in ("class_names", "feature_names", "reading", "num_edge_features"):
            assert getattr(found, name) == getattr(expected, name) == getattr(data, name)
        assert found.node_ids == (data.node_ids if found.number == 0 else ())
        for a, b in zip(expected.graphs, found.graphs, strict=True):
            assert (a.own, a.num_nodes) == (b.own, b.num_nodes)
            for name in ("ids", "halo_counts", "edge_index", "y"):
                assert torch.equal(getattr(a, name), getattr(b, name))
            assert torch.equal(a.x.to_dense(), b.x.to_dense())
            assert all(torch.equal(a[name], b[name]) for name in MASKS)
            for name in ("edge_weight", "edge_attr"):
                given, read = getattr(a, name), getattr(b, name)
                assert read is None if given is None else torch.equal(read, given)
            if data.multi_label:
                assert "label_features" not in b
            else:
                assert torch.equal(a.label_features, b.label_features)


def test_mistakes_are_told_in_a_sentence(tmp_path):
    folder = tmp_path / "parts"
    write_partition(folder, tiny_dataset(), 2)
    with pytest.raises(UserError, match="partitioned for 2 processes but there are 3"):
        read_part(folder, 0, 3)
    (folder / "parts" / "1" / "0" / "ids.npy").write_bytes(b"nothing")
    with pytest.raises(UserError, match="part 1 of"):
        read_part(folder, 1, 2)
    (folder / "partition.json").write_text(json.dumps({"format": 7}))
    with pytest.raises(UserError, match="format 7"):
        read_part(folder, 0, 2)
    with pytest.raises(UserError, match="not a partitioned graph"):
        read_part(tmp_path, 0, 2)
    with pytest.raises(UserError, match="exists and is not a partition folder"):
        write_partition(tmp_path, tiny_dataset(), 2)


def train_from(team: Team, folder: str) -> dict[str, list[float]]:
    data = read_part(folder, team.rank, team.size)
    torch.manual_seed(0)
    model = network_of(PLAN, data)
    fitted = train(model, data, PLAN.training, team=team)
    labels = whole_labels(data, team)
    if labels is not None:
        whole = tiny_dataset(sparse=True).graph
        for name in ("y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(labels.graph[name], whole[name])
    return {"loss": [epoch.loss for epoch in fitted.history]}


def test_training_from_files_is_training_on_the_graph(tmp_path):
    data = tiny_dataset(sparse=True)
    write_partition(tmp_path / "parts", data, 2)
    first, second = together(2, train_from, str(tmp_path / "parts"))
    torch.manual_seed(0)
    model = network_of(PLAN, data)
    alone = [epoch.loss for epoch in train(model, data, PLAN.training).history]
    assert first == second
    assert first["loss"] == pytest.approx(alone, rel=1e-5)
