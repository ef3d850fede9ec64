"""The parts of an exported program against what they stand for: lists, labels, sparse features."""

import pytest
import torch
from cases import CLASSES, SHAPES, Case
from test_every_system import CASES

from deepgat.data.label_features import one_hot_labels, propagate_labels
from deepgat.export.labels import propagated_labels
from deepgat.export.program import Program, SparseProgram
from deepgat.ops import Neighbors, use_backend
from deepgat.ops.edge_list import EdgeList
from deepgat.ops.sparse_rows import SparseRows

VARIANTS = [
    pytest.param(case, marks=[pytest.mark.slow] if case.settings else [], id=case.name)
    for case in CASES
]


@pytest.mark.parametrize("case", VARIANTS)
def test_the_program_computes_what_the_model_does(case):
    model = case.model()
    program = (SparseProgram if case.sparse else Program)(model.network)
    for shape in SHAPES:
        graph = case.graph(*shape)
        with torch.no_grad(), use_backend("reference"):
            found = program(**case.inputs(model, graph))
        outputs = model.outputs(graph)
        layers = [outputs.layer_logits[layer] for layer in sorted(outputs.layer_logits)]
        torch.testing.assert_close(found["layer_logits"], torch.stack(layers), rtol=1e-5, atol=1e-5)
        shares = model.predict(graph).probabilities
        torch.testing.assert_close(found["probabilities"], shares, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_the_first_of_every_pair_is_an_edge_of_the_neighbour_lists(shape):
    n, edge_index = shape
    found = EdgeList.of(edge_index, n)
    wanted = Neighbors.from_edge_index(edge_index, n)
    assert torch.equal(found.edge_index[:, found.first], wanted.edge_index)
    assert found.num_edges == edge_index.size(1) + n
    assert torch.equal(found.log_weight[:, 0] == 0, found.first)
    assert torch.equal(found.others, wanted.others)
    assert found.num_nodes == wanted.num_nodes


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_weights_and_features_of_repeated_edges(shape):
    n, edge_index = shape
    graph = Case("gcn", weights=True, edge_dim=2).graph(n, edge_index)
    found = EdgeList.of(edge_index, n, graph.edge_weight, graph.edge_attr)
    wanted = Neighbors.from_edge_index(edge_index, n).with_values(
        edge_index, graph.edge_weight, graph.edge_attr
    )
    torch.testing.assert_close(found.log_weight[found.first], wanted.log_weight)
    torch.testing.assert_close(found.features[found.first], wanted.features)
    assert bool((found.log_weight[~found.first] == -torch.inf).all())
    assert torch.equal(found.others, wanted.others)


@pytest.mark.parametrize("first", ["zero", "neighbor-counts"])
@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
@pytest.mark.parametrize("hops", [1, 2, 3, 6])
def test_propagated_labels(hops, shape, first):
    n, edge_index = shape
    graph = Case("deepgat").graph(n, edge_index)
    Y = one_hot_labels(graph.y, graph.train_mask, CLASSES)
    wanted = propagate_labels(edge_index, Y, n, hops, first)
    found = propagated_labels(EdgeList.of(edge_index, n), graph.y, CLASSES, hops, first)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("first", ["zero", "neighbor-counts"])
def test_the_labels_of_a_node_do_not_depend_on_its_own(first):
    n, edge_index = SHAPES[4]
    edges = EdgeList.of(edge_index, n)
    known = Case("deepgat").graph(n, edge_index).y
    before = propagated_labels(edges, known, CLASSES, 6, first)
    for node in range(n):
        for label in range(-1, CLASSES):
            other = known.clone()
            other[node] = label
            assert torch.equal(
                propagated_labels(edges, other, CLASSES, 6, first)[node], before[node]
            )


def test_sparse_rows():
    dense = torch.randn(7, 4) * (torch.rand(7, 4) > 0.6)
    dense[2] = dense[6] = 0
    csr = dense.to_sparse_csr()
    rows = SparseRows.of(csr.crow_indices(), csr.col_indices(), csr.values(), 4)
    weight = torch.randn(4, 3)
    torch.testing.assert_close(rows.matmul(weight), dense @ weight)
    torch.testing.assert_close(rows.to_dense(), dense)
