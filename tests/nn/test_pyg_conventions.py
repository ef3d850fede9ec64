"""NeighborAttention in a PyG model, in the place of GATConv: the same arguments, the same numbers.

The networks of :mod:`deepgat.models` keep PyG's conventions too: argument order, ``edge_weight``,
``EdgeIndex`` and ``reset_parameters``.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GCNConv, HeteroConv

from deepgat.data import csbm_graph
from deepgat.errors import UserError
from deepgat.models import GCN, SYSTEMS, ConvStack, Network
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.nn import NeighborAttention
from deepgat.ops import Neighbors, joined_edges, use_neighbor_cache
from networks import network

from graphs import edges, random_edges

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
CONVS = {"GATConv": GATConv, "NeighborAttention": NeighborAttention}
NETWORKS = [name for name in SYSTEMS if name != LABEL_PROPAGATION]


class GAT(nn.Module):
    """The model of PyG's examples/gat.py, with the convolution as an argument."""

    def __init__(self, conv, in_channels, hidden_channels, out_channels, heads, edge_dim=None):
        super().__init__()
        options = {"dropout": 0.6, "edge_dim": edge_dim}
        self.conv1 = conv(in_channels, hidden_channels, heads, **options)
        self.conv2 = conv(hidden_channels * heads, out_channels, heads=1, concat=False, **options)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        x = F.dropout(x, p=0.6, training=self.training)
        x = F.elu(self.conv1(x, edge_index, edge_attr))
        x = F.dropout(x, p=0.6, training=self.training)
        return self.conv2(x, edge_index, edge_attr)


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("conv", CONVS)
def test_the_example_of_pyg_trains_with_either_layer(conv, edge_dim):
    graph = csbm_graph(150, 3, 8, degree=6, separation=2.0)
    x, edge_index, y = graph.x, graph.edge_index, graph.y
    edge_attr = None if edge_dim is None else torch.randn(edge_index.size(1), edge_dim)
    train = torch.arange(150) % 2 == 0
    model = GAT(CONVS[conv], 8, 8, 3, heads=4, edge_dim=edge_dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = []
    for _ in range(30):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edge_index, edge_attr)[train], y[train])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    model.eval()
    right = model(x, edge_index, edge_attr).argmax(-1) == y
    assert right[~train].float().mean() > 0.5  # chance is a third
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def pair_of_layers(**options) -> tuple[NeighborAttention, GATConv]:
    """Ours and PyG's with the same weights."""
    ours, theirs = NeighborAttention(7, 4, 3, **options), GATConv(7, 4, 3, **options)
    theirs.lin.weight.data = ours.weight.data
    theirs.att_src.data = ours.score.source.data.unsqueeze(0)
    theirs.att_dst.data = ours.score.target.data.unsqueeze(0)
    if ours.bias is not None:
        ours.bias.data.normal_()
        theirs.bias.data = ours.bias.data
    return ours.eval(), theirs.eval()


GRAPHS = {
    "undirected": random_edges(20, 40).unique(dim=1),  # with self-loops of its own
    "directed": random_edges(20, 40, directed=True).unique(dim=1),
    "isolated nodes": edges((0, 1), (1, 0), (1, 1), (4, 2), (5, 5)),
    "no edges": edges(),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("add_self_loops", [True, False])
@pytest.mark.parametrize("concat", [True, False])
def test_output_and_attention_are_those_of_gatconv(graph, add_self_loops, concat):
    ours, theirs = pair_of_layers(concat=concat, add_self_loops=add_self_loops)
    x, edge_index = torch.randn(20, 7), GRAPHS[graph]
    out, (found, weight) = ours(x, edge_index, return_attention_weights=True)
    expected, (edge_list, alpha) = theirs(x, edge_index, return_attention_weights=True)
    torch.testing.assert_close(out, expected, **CLOSE)
    torch.testing.assert_close(ours(x, edge_index), expected, **CLOSE)
    mine = {tuple(edge): row for edge, row in zip(found.t().tolist(), weight, strict=True)}
    for edge, row in zip(edge_list.t().tolist(), alpha, strict=True):
        torch.testing.assert_close(mine.pop(tuple(edge)), row, **CLOSE)
    # Lists always hold self-loops; those that the graph does not have weigh nothing.
    assert all(u == v and not row.any() for (u, v), row in mine.items())
    assert not mine or not add_self_loops


@pytest.mark.parametrize(
    "options", [{"negative_slope": 0.5}, {"bias": False}, {"dropout": 0.3}], ids=str
)
def test_other_arguments_mean_what_they_mean_in_gatconv(options):
    ours, theirs = pair_of_layers(**options)
    x, edge_index = torch.randn(20, 7), GRAPHS["undirected"]
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index), **CLOSE)


def test_gradients_are_those_of_gatconv():
    ours, theirs = pair_of_layers(add_self_loops=False)
    x, edge_index = torch.randn(20, 7, requires_grad=True), GRAPHS["isolated nodes"]
    direction = torch.randn(20, 12)
    mine = [ours.weight, ours.score.source, ours.score.target, ours.bias]
    literal = [theirs.lin.weight, theirs.att_src, theirs.att_dst, theirs.bias]
    found = torch.autograd.grad(ours(x, edge_index), [x, *mine], direction)
    expected = torch.autograd.grad(theirs(x, edge_index), [x, *literal], direction)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b.view_as(a), **CLOSE)


@pytest.mark.parametrize("num_classes", [None, 5])
def test_the_third_argument_is_edge_attr(num_classes):
    conv = NeighborAttention(7, 4, 3, edge_dim=2, num_classes=num_classes)
    x, edge_index = torch.randn(20, 7), GRAPHS["undirected"]
    attr = torch.randn(edge_index.size(1), 2)
    out = conv(x, edge_index, attr)
    assert torch.equal(out, conv(x, edge_index, edge_attr=attr))
    assert not torch.allclose(out, conv(x, edge_index, attr + torch.randn_like(attr)))
    with pytest.raises(UserError, match="pass edge_attr"):
        conv(x, edge_index)
    plain = NeighborAttention(7, 4, 3, num_classes=num_classes)
    with pytest.raises(UserError, match="has no edge_dim: make it with edge_dim=2"):
        plain(x, edge_index, attr)


def test_the_third_argument_of_a_network_is_edge_weight():
    model, x = GCN(7, 8, 2, 3).eval(), torch.randn(20, 7)
    edge_index = GRAPHS["undirected"]
    edge_index = edge_index[:, edge_index[0] < edge_index[1]]
    edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    weight = (torch.rand(edge_index.size(1) // 2) + 0.1).repeat(2)
    out = model(x, edge_index, weight)
    assert torch.equal(out, model(x, edge_index, edge_weight=weight))
    assert not torch.allclose(out, model(x, edge_index))
    torch.testing.assert_close(
        model(x, edge_index, torch.ones_like(weight)), model(x, edge_index), **CLOSE
    )
    h = x
    for conv in model.convs:  # GCNConv weighs the self-loops it adds by 1, as we do
        theirs = GCNConv(conv.in_channels, conv.out_channels)
        theirs.lin.weight.data, theirs.bias.data = conv.weight.data, conv.bias.data
        h = theirs(h if conv is model.convs[0] else h.relu(), edge_index, weight)
    torch.testing.assert_close(out, h, **CLOSE)


@pytest.mark.parametrize("order", ["row", "col", None])
def test_an_edge_index_of_pyg_is_as_good_as_a_tensor(order):
    plain = GRAPHS["undirected"].contiguous()
    if order is not None:
        plain = plain[:, plain[0 if order == "row" else 1].argsort(stable=True)]
    edge_index = EdgeIndex(plain, sparse_size=(20, 20), sort_order=order)
    x, attr = torch.randn(20, 7), torch.randn(plain.size(1), 2)
    for loops in (True, False):
        conv = NeighborAttention(7, 4, 3, add_self_loops=loops, edge_dim=2)
        assert torch.equal(conv(x, edge_index, attr), conv(x, plain, attr))
    model = GCN(7, 8, 2, 3).eval()
    assert torch.equal(model(x, edge_index), model(x, plain))


BETWEEN = {
    "edges": edges((0, 1), (3, 1), (8, 0), (2, 3), (5, 3), (5, 2)),
    "no edges": edges(),
    "one": edges((8, 4)),
}
"""From 9 sources to 5 targets."""


@pytest.mark.parametrize("graph", BETWEEN)
@pytest.mark.parametrize("concat", [True, False])
def test_a_pair_gives_what_gatconv_gives(graph, concat):
    ours, theirs = pair_of_layers(concat=concat, add_self_loops=False, edge_dim=None)
    x, edge_index = (torch.randn(9, 7), torch.randn(5, 7)), BETWEEN[graph]
    out, (found, weight) = ours(x, edge_index, return_attention_weights=True)
    expected, (edge_list, alpha) = theirs(x, edge_index, return_attention_weights=True)
    torch.testing.assert_close(out, expected, **CLOSE)
    torch.testing.assert_close(ours(x, edge_index), expected, **CLOSE)
    mine = dict(zip(map(tuple, found.t().tolist()), weight, strict=True))
    assert mine.keys() == set(map(tuple, edge_list.t().tolist()))
    for edge, row in zip(edge_list.t().tolist(), alpha, strict=True):
        torch.testing.assert_close(mine[tuple(edge)], row, **CLOSE)


def test_gradients_of_a_pair_are_those_of_gatconv():
    ours, theirs = pair_of_layers(add_self_loops=False)
    x = torch.randn(9, 7, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    direction = torch.randn(5, 12)
    mine = [ours.weight, ours.score.source, ours.score.target, ours.bias]
    literal = [theirs.lin.weight, theirs.att_src, theirs.att_dst, theirs.bias]
    found = torch.autograd.grad(ours(x, BETWEEN["edges"]), [*x, *mine], direction)
    expected = torch.autograd.grad(theirs(x, BETWEEN["edges"]), [*x, *literal], direction)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b.view_as(a), **CLOSE)


def test_values_of_edges_between_two_sets_count():
    conv = NeighborAttention(7, 4, 3, add_self_loops=False, edge_dim=2).eval()
    x, edge_index = (torch.randn(9, 7), torch.randn(5, 7)), BETWEEN["edges"]
    attr, weight = torch.randn(6, 2), torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    out = conv(x, edge_index, attr, edge_weight=weight)
    left = weight > 0
    torch.testing.assert_close(out, conv(x, edge_index[:, left], attr[left]), **CLOSE)
    assert not torch.allclose(out, conv(x, edge_index, attr), **CLOSE)


def test_a_pair_by_predicted_class_and_changed_edges():
    conv = NeighborAttention(7, 4, 3, add_self_loops=False, num_classes=2).eval()
    x, edge_index = (torch.randn(9, 7), torch.randn(5, 7)), BETWEEN["edges"].contiguous()
    first = conv(x, edge_index)
    assert torch.equal(first, conv(x, edge_index))
    kept = joined_edges(edge_index, 9, 5)
    assert joined_edges(edge_index, 9, 5) is kept  # so its neighbour lists are kept, too
    with use_neighbor_cache(False):
        assert joined_edges(edge_index, 9, 5) is not kept
    assert joined_edges(edge_index, 9, 5) is not kept  # the cache was cleared
    edge_index[1, 0] = 4
    moved = conv(x, edge_index)
    assert moved[4].abs().sum() > 0
    assert torch.equal(moved, conv(x, edge_index.clone()))
    assert torch.equal(conv(x, EdgeIndex(edge_index, sparse_size=(9, 5))), moved)


def test_two_kinds_of_nodes_in_a_heteroconv():
    hetero = HeteroConv(
        {
            ("a", "to", "b"): NeighborAttention(7, 4, add_self_loops=False),
            ("b", "to", "b"): NeighborAttention(7, 4),
            ("b", "to", "a"): NeighborAttention(7, 4, add_self_loops=False),
        }
    )
    x = {"a": torch.randn(9, 7), "b": torch.randn(5, 7)}
    lists = {
        ("a", "to", "b"): BETWEEN["edges"],
        ("b", "to", "b"): edges((0, 1), (1, 2)),
        ("b", "to", "a"): BETWEEN["edges"].flip(0),
    }
    expected = hetero.convs["a", "to", "b"]((x["a"], x["b"]), lists["a", "to", "b"])
    expected = expected + hetero.convs["b", "to", "b"](x["b"], lists["b", "to", "b"])
    torch.testing.assert_close(hetero(x, lists)["b"], expected)


@pytest.mark.parametrize(
    ("edge_index", "sentence"),
    [
        (edges((9, 0)), "names source 9 to 9 but there are 9 sources"),
        (edges((0, 5)), "names target 5 to 5 but there are 5 targets"),
        (edges((-1, 0)), "names source -1 to -1"),
        (torch.zeros(3, 2), "has shape"),
    ],
)
def test_edges_beyond_a_set_are_refused(edge_index, sentence):
    x = torch.randn(9, 7), torch.randn(5, 7)
    conv = NeighborAttention(7, 4, add_self_loops=False)
    with pytest.raises(UserError, match=sentence):
        conv(x, edge_index)
    if edge_index.size(0) == 2:
        compiled = torch.compile(conv, backend="eager", fullgraph=True)
        with pytest.raises(UserError, match="edge_index names node"):
            compiled(x, edge_index)


def test_what_a_pair_cannot_have_is_refused():
    x, edge_index = (torch.randn(9, 7), torch.randn(5, 7)), BETWEEN["edges"]
    with pytest.raises(UserError, match="make the layer with add_self_loops=False"):
        NeighborAttention(7, 4)(x, edge_index)
    conv = NeighborAttention(7, 4, add_self_loops=False)
    with pytest.raises(UserError, match=r"x\[1\] is of the pair x: expected a dense tensor"):
        conv((x[0], None), edge_index)
    with pytest.raises(
        UserError, match="x has 6 features per node, but the layer was made with in_channels=7"
    ):
        conv((x[0], x[1][:, :6]), edge_index)
    with pytest.raises(UserError, match="need one set of nodes"):
        conv(x, edge_index, labels=torch.zeros(5))
    with pytest.raises(UserError, match="prepared Neighbors have one set of nodes"):
        conv(x, Neighbors.from_edge_index(edges((0, 1)), 5))


@pytest.mark.parametrize(
    ("sizes", "name"),
    [((-1, 4), "in_channels is -1"), (((7, 7), 4), "in_channels is"), ((7, 0), "out_channels is 0"),
     ((7, 4, 0), "heads is 0")],
)  # fmt: skip
def test_sizes_that_no_layer_has_are_named(sizes, name):
    with pytest.raises(UserError, match=re.escape(name)):
        NeighborAttention(*sizes)


def test_another_width_than_the_layers_is_named():
    with pytest.raises(
        UserError, match="x has 6 features per node, but the layer was made with in_channels=7"
    ):
        NeighborAttention(7, 4)(torch.randn(20, 6), GRAPHS["undirected"])


# --------------------------------------------------------------------------- reset_parameters


CHOICES = {
    "deep": {"attention_from": 1},
    "gcnii": {"conv": "deepgat"},
    "g2": {"conv": "gat", "gate_conv": "own"},
    "jk": {"mode": "lstm"},
    "gcn": {"residual": "linear", "norm": "batch"},
}


def made(system: str, seed: int, **choices) -> Network:
    torch.manual_seed(seed)
    sizes = {"num_layers": 3, "hidden_channels": 6}
    return network(system, 5, 3, **sizes, **choices)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("system", NETWORKS)
def test_reset_parameters_draws_every_parameter_anew(system, edge_dim):
    chosen = {"edge_dim": edge_dim, **CHOICES.get(system, {})}
    before = parameters_of(made(system, 4, **chosen))
    model = made(system, 3, **chosen)
    fresh = parameters_of(model)
    drawn = {name for name, p in fresh.items() if not torch.equal(p, before[name])}
    assert drawn
    for p in model.parameters():
        p.data += 1.0
    model.reset_parameters()
    for name, p in model.named_parameters():
        assert not torch.equal(p, fresh[name] + 1.0), name
        # What is not drawn are biases of 0 and norms of 1.
        assert torch.equal(p, fresh[name]) == (name not in drawn), name


SAME_ORDER = [name for name in NETWORKS if name not in ("gat", "deep", "deep-oracle", "gcnii")]
"""GAT's scores draw twice when they are made; both Deeps and GCNII draw layer by layer."""


@pytest.mark.parametrize("system", SAME_ORDER)
def test_a_seed_gives_the_parameters_of_a_fresh_model(system):
    model = made(system, 7)
    torch.manual_seed(3)
    model.reset_parameters()
    for name, p in parameters_of(made(system, 3)).items():
        assert torch.equal(p, model.get_parameter(name)), name


def test_running_statistics_are_reset_too():
    model = ConvStack(5, 6, 2, 3, norm="batch").train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(torch.randn(9, 5) + 3, random_edges(9, 14))
    model.reset_parameters()
    assert before
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@pytest.mark.parametrize("options", [{}, {"num_classes": 3}])
def test_run_leaves_out_self_loops_as_forward_does(options):
    """Node 3 has no neighbours at all."""
    conv = NeighborAttention(4, 2, heads=2, add_self_loops=False, **options).double()
    x = torch.randn(4, 4, dtype=torch.double)
    edge_index = torch.tensor([[0, 1, 2, 1], [1, 2, 0, 0]])
    out = conv.run(x, edge_index).out
    torch.testing.assert_close(out, conv(x, edge_index))
    assert torch.equal(out[3], conv.bias)
    with pytest.raises(UserError, match="prepared Neighbors always contain self-loops"):
        conv(x, Neighbors.from_edge_index(edge_index, 4))


@pytest.mark.parametrize("size", [0, -1, 8.5, (3, 3)])
def test_only_an_input_size_is_compared_with_that_of_gatconv(size):
    with pytest.raises(UserError, match=r"out_channels is .*: expected a positive integer$"):
        NeighborAttention(4, size)
    with pytest.raises(UserError, match=r"in_channels is .*: expected a positive integer"):
        NeighborAttention(size, 4)


def test_edge_features_of_another_width_are_named():
    conv = NeighborAttention(4, 2, edge_dim=3)
    with pytest.raises(UserError, match=r"edge_attr has 2 columns, but .* with edge_dim=3"):
        conv(torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]]), torch.randn(2, 2))
