"""The PyG faces: what they store, that they leave their input alone, and what they refuse."""

import copy

import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import Compose, NormalizeFeatures

from deepgat.data import PropagateLabels, SplitNodes, csbm_graph, propagate_labels
from deepgat.data.feature_matrix import csr_from_scipy, normalize_rows
from deepgat.errors import UserError


@pytest.fixture
def graph() -> Data:
    return csbm_graph(300, 3, 4, hubs=2, hub_degree=20, seed=2)


def with_ten_splits(graph: Data) -> Data:
    draw = torch.rand(300, 10, generator=torch.Generator().manual_seed(0))
    graph.train_mask, graph.val_mask, graph.test_mask = draw < 0.5, draw > 0.8, draw.mul(0) > 1
    return graph


@pytest.mark.parametrize(
    "transform",
    [
        SplitNodes("random:0:5/5"),
        SplitNodes("public"),
        PropagateLabels(),
        Compose([SplitNodes("fractions:0.5/0.2"), PropagateLabels(first="neighbor-counts")]),
    ],
    ids=repr,
)
def test_input_is_not_changed(graph: Data, transform: SplitNodes) -> None:
    graph = SplitNodes("random:1:5/5")(graph)
    graph.y[:10] = -1
    before = copy.deepcopy(graph).to_dict()
    result = transform(graph)
    after = graph.to_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert result is not graph


def test_label_features_are_those_of_the_function(graph: Data) -> None:
    graph = SplitNodes("random:0:5/5")(graph)
    Y = torch.nn.functional.one_hot(graph.y, 3).double() * graph.train_mask[:, None]
    z = propagate_labels(graph.edge_index, Y, 300, 3, "neighbor-counts")
    transform = PropagateLabels(first="neighbor-counts", dtype=torch.float64)
    assert torch.equal(transform(graph).label_features, z)
    stored = PropagateLabels(first="neighbor-counts")(graph).label_features
    assert stored.shape == (300, 3, 3)
    assert torch.equal(stored, z.float())


@pytest.mark.parametrize("hops", [2, 3, 4])
def test_only_training_labels_enter(graph: Data, hops: int) -> None:
    graph = SplitNodes("random:0:5/5")(graph)
    z = PropagateLabels(hops, "neighbor-counts", num_classes=3)(graph).label_features
    scrambled = copy.copy(graph)
    scrambled.y = torch.where(graph.train_mask, graph.y, (graph.y + 1) % 3)
    assert torch.equal(PropagateLabels(hops, "neighbor-counts", 3)(scrambled).label_features, z)
    scrambled.y = torch.where(graph.train_mask, graph.y, -1)
    assert torch.equal(PropagateLabels(hops, "neighbor-counts", 3)(scrambled).label_features, z)
    scrambled.y = torch.where(graph.train_mask, (graph.y + 1) % 3, graph.y)
    assert not torch.equal(PropagateLabels(hops, "neighbor-counts", 3)(scrambled).label_features, z)


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
@pytest.mark.parametrize("first", ["zero", "neighbor-counts"])
def test_stored_features_keep_the_own_label_out_bit_by_bit(
    graph: Data, hops: int, first: str
) -> None:
    graph = SplitNodes("random:0:10/5")(graph)
    transform = PropagateLabels(hops, first, num_classes=3)  # type: ignore[arg-type]
    z = transform(graph).label_features
    for v in graph.train_mask.nonzero().view(-1).tolist():
        other = copy.copy(graph)
        other.y = graph.y.clone()
        other.y[v] = (graph.y[v] + 1) % 3
        assert torch.equal(transform(other).label_features[v], z[v])


def test_label_propagation_refuses_what_it_cannot_do(graph: Data) -> None:
    with pytest.raises(UserError, match="apply SplitNodes first"):
        PropagateLabels()(graph)
    with pytest.raises(UserError, match="apply SplitNodes first"):
        PropagateLabels()(with_ten_splits(graph))
    graph = SplitNodes("stored:0")(with_ten_splits(graph))
    graph.y = torch.zeros(300, 4)
    with pytest.raises(UserError, match="several labels per node"):
        PropagateLabels()(graph)


def test_stored_split_is_the_column(graph: Data) -> None:
    graph = with_ten_splits(graph)
    graph.y[:50] = -1
    result = SplitNodes("stored:7")(graph)
    assert torch.equal(result.train_mask, graph.train_mask[:, 7] & (graph.y >= 0))
    assert torch.equal(result.val_mask, graph.val_mask[:, 7] & (graph.y >= 0))
    assert not result.train_mask[:50].any()


def test_public_split_keeps_the_masks(graph: Data) -> None:
    graph = SplitNodes("random:0:5/5")(graph)
    result = SplitNodes("public")(graph)
    assert torch.equal(result.test_mask, graph.test_mask)


def test_splits_that_are_not_there(graph: Data) -> None:
    with pytest.raises(UserError, match="toy has no split 'public': it comes without splits"):
        SplitNodes("public", "toy")(graph)
    ten = with_ten_splits(graph.clone())
    for text in ("public", "stored:10"):
        with pytest.raises(UserError, match="it has stored:0 to stored:9"):
            SplitNodes(text)(ten)
    one = SplitNodes("random:0:5/5")(graph)
    with pytest.raises(UserError, match="it has the split public"):
        SplitNodes("stored:0")(one)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("random:0:20/0", "the split 'random:0:20/0' of toy has no validation nodes: early"),
        ("random:0:0/20", "has no training nodes"),
        ("random:0:1000/20", "has no validation nodes"),
        ("fractions:0.001/0.5", "has no training nodes"),
        ("fractions:0.5/0", "has no validation nodes"),
    ],
)
def test_empty_parts_are_told(graph: Data, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        SplitNodes(text, "toy")(graph)


def test_rows_are_normalised_like_pyg_does() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(40, 30, generator=generator) < 0.1).float()
    x[3] = 0
    x[4, :5] = 1
    expected = NormalizeFeatures()(Data(x=x.clone())).x
    assert torch.equal(normalize_rows(x), expected)
    sparse = csr_from_scipy(sp.csr_matrix(x.numpy()))
    result = normalize_rows(sparse)
    assert result.layout is torch.sparse_csr
    assert result.crow_indices().dtype is torch.int32
    assert torch.equal(result.to_dense(), expected)
    assert torch.equal(sparse.to_dense(), x)


def test_sparse_features_merge_duplicates_and_drop_zeros() -> None:
    matrix = sp.coo_matrix(([1.0, 2.0, 0.0, 5.0], ([0, 0, 1, 1], [2, 2, 0, 1])), shape=(3, 4))
    x = csr_from_scipy(matrix)
    assert x.values().tolist() == [3, 5]
    assert x.dtype is torch.float32
    assert x.to_dense().tolist() == [[0, 0, 3, 0], [0, 5, 0, 0], [0, 0, 0, 0]]
    weight = torch.rand(4, 2)
    torch.testing.assert_close(x @ weight, x.to_dense() @ weight)
