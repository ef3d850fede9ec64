"""Whole graphs for every process of a team: a step is that of one process with the same graphs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.distributed import Team
from deepgat.errors import UserError
from deepgat.models import GIN, GraphClassifier
from deepgat.ops import Neighbors
from deepgat.training.evaluate import evaluate, losses_and_f1
from deepgat.training.inputs import GraphBatches, prepare_graph, side_by_side
from deepgat.training.loop import run_epochs, train
from deepgat.training.recipes import drop_unsuited_self_training
from deepgat.training.trainer import Trainer

from together import DROPOUT, apart, network_of, odd_graph, plan_of, together


def several(count: int, kind: str) -> NodeDataset:
    """Graphs of different sizes; some train, some validate, the last tests."""
    graphs = []
    for number in range(count):
        graph = odd_graph(number, multi_label=kind == "labels").subgraph(
            torch.arange(60 - 7 * number)
        )
        part = {count - 1: "test", count - 2: "val"}.get(number, "train")
        for name in ("train", "val", "test"):
            graph[f"{name}_mask"] = torch.full((graph.num_nodes,), name == part)
        if kind == "values":
            generator = torch.Generator().manual_seed(number)
            graph.edge_weight = torch.rand(graph.num_edges, generator=generator).double() + 0.1
            graph.edge_attr = torch.randn(graph.num_edges, 2, generator=generator).double()
        graphs.append(graph)
    return NodeDataset("many", "many", tuple(graphs), 7, 3, kind == "labels", "public")


JOBS = [
    *((name, "classes", 2) for name in ("paper", "authors", "authors-batch", "deep", "g2")),
    ("dropedge", "classes", 3),
    ("authors", "labels", 3),
    ("gat", "values", 2),
    ("authors", "few", 2),  # one graph each to train, to validate and to test on
]


def train_nodes(team: Team | None, jobs: list[tuple[str, str, int]]) -> dict[str, Any]:
    results = {}
    for name, kind, batch in jobs:
        data = several(3 if kind == "few" else 7, kind)
        no_labels = {"label_hops": 0} if kind == "labels" else {}
        plan = drop_unsuited_self_training(plan_of(name, {**DROPOUT, **no_labels}), data)
        torch.manual_seed(0)
        model = network_of(plan, data).double()
        training = replace(plan.training, epochs=3, monitor="train-loss", device="cpu",
                           batches="graphs", batch_size=batch)  # fmt: skip
        history = train(model, data, training, team=team).history
        scores = evaluate(model, data, "cpu", team)
        results[f"{name} {kind} {batch}"] = _result(model, history, scores.logits, [
            *scores.micro_f1.values(), *scores.loss.values()])  # fmt: skip
    return results


def _result(model: Any, history: Any, logits: list[torch.Tensor], scores: list[float]) -> dict:
    return {
        "history": torch.tensor([[e.loss, e.val_loss, e.val_f1] for e in history]),
        "weights": {key: item.clone() for key, item in model.state_dict().items()},
        "scores": torch.tensor(scores),
        "logits": logits,
    }


def train_graphs(team: Team | None, names: tuple[str, ...]) -> dict[str, Any]:
    """Classes of whole graphs, by GIN and by a stack with batch norm; a last batch of two."""
    graphs = []
    for number in range(16):
        graph = odd_graph(number).subgraph(torch.arange(10 + number))
        graphs.append(Data(x=graph.x, edge_index=graph.edge_index, y=torch.tensor([number % 3])))
    nodes = sum(graph.num_nodes for graph in graphs)
    results = {}
    for name in names:
        torch.manual_seed(0)
        plan = plan_of("deep" if name == "gin" else name, {"label_hops": 0})
        body = GIN(7, 8, 2, 3) if name == "gin" else network_of(plan, several(2, "classes"))
        model = GraphClassifier(body, "sum").double()
        training = replace(
            plan.training, epochs=3, monitor="train-loss", device="cpu", self_training=0.0
        )
        made = [prepare_graph(graph, torch.device("cpu")) for graph in graphs]
        inputs = GraphBatches(made[:10], [side_by_side(made[10:13], team)], 4, team)
        history = run_epochs(Trainer(model, inputs, training, nodes, team=team)).history
        model.eval()
        tested = side_by_side(made[13:], team)
        with torch.no_grad():
            loss, f1 = losses_and_f1([tested.run(model).logits], [tested], "val", team)
            scores = torch.stack([*loss, f1])
        results[name] = _result(model, history, [torch.zeros(1)], scores.tolist())
    return results


def train_both(
    team: Team | None, jobs: list[tuple[str, str, int]], names: tuple[str, ...]
) -> dict[str, Any]:
    return train_nodes(team, jobs) | train_graphs(team, names)


def check(size: int, jobs: list[tuple[str, str, int]], names: tuple[str, ...]) -> None:
    alone, team = train_both(None, jobs, names), together(size, train_both, jobs, names)
    for name, expected in alone.items():
        assert apart(expected, [found[name] for found in team]) < 1e-10, name


def test_two_processes_share_graphs_and_train_as_one():
    check(2, [("authors-batch", "classes", 2)], ("gin",))


@pytest.mark.distributed
@pytest.mark.parametrize(("size", "jobs"), [(1, JOBS[:1]), (2, JOBS), (3, JOBS), (4, JOBS[-4:])])
def test_any_number_of_processes_shares_graphs(size, jobs):
    check(size, jobs, ("gin", "authors-batch", "deep"))


def test_lists_side_by_side_are_those_of_the_graphs_side_by_side():
    graphs = several(3, "values").graphs
    lists, shifted, start = [], [], 0
    for graph in graphs:
        own = Neighbors.from_edge_index(graph.edge_index, graph.num_nodes)
        lists.append(own.with_values(graph.edge_index, graph.edge_weight, graph.edge_attr))
        shifted.append(graph.edge_index + start)
        start += graph.num_nodes
    found, edges = Neighbors.side_by_side(lists), torch.cat(shifted, 1)
    weight = torch.cat([graph.edge_weight for graph in graphs])
    attr = torch.cat([graph.edge_attr for graph in graphs])
    expected = Neighbors.from_edge_index(edges, start).with_values(edges, weight, attr)
    for name, item in vars(expected).items():
        if isinstance(item, torch.Tensor):
            assert torch.equal(getattr(found, name), item), name
    assert found.symmetric == expected.symmetric


def test_one_step_takes_as_many_graphs_as_asked():
    data = several(7, "classes")
    torch.manual_seed(0)
    plan = plan_of("authors")
    model = network_of(plan, data).double()
    steps = []
    run = model.run
    model.run = lambda x, *rest: (steps.append(x.size(0)), run(x, *rest))[1]
    train(model, data, replace(plan.training, epochs=1, device="cpu", batches="graphs"))
    trained = [graph.num_nodes for graph in data.graphs[:5]]
    assert len(steps) == 3 + 1  # five graphs in three steps, and one to validate on
    assert sum(steps[:3]) == sum(trained)


def test_what_a_batch_does_not_take():
    data = several(4, "classes")
    sparse = replace(data, graphs=tuple(g.clone() for g in data.graphs))
    for graph in sparse.graphs:
        graph.x = graph.x.to_sparse_csr()
    plan = plan_of("authors")
    model = network_of(plan, data).double()
    with pytest.raises(UserError, match="need dense"):
        train(model, sparse, replace(plan.training, epochs=1, device="cpu", batches="graphs"))
    pairs = network_of(plan_of("pairnorm"), data).double()
    settings = replace(plan.training, epochs=1, device="cpu", batches="graphs")
    with pytest.raises(UserError, match="PairNorm takes its means over all nodes of a step"):
        train(pairs, data, settings)
    weighted = replace(data, graphs=tuple(g.clone() for g in data.graphs))
    weighted.graphs[0]["train_weight"] = torch.ones(weighted.graphs[0].num_nodes)
    with pytest.raises(UserError, match="train_weight is for one graph a step"):
        train(model, weighted, settings)


def test_graphs_without_weights_beside_one_with_weights():
    """Their edges weigh 1."""
    one, two = (several(2, kind).graphs[0] for kind in ("values", "classes"))
    lists = [
        Neighbors.from_edge_index(g.edge_index, g.num_nodes).with_values(
            g.edge_index, g.edge_weight, g.edge_attr
        )
        for g in (one, two)
    ]
    found = Neighbors.side_by_side(lists)
    first = lists[0].num_edges
    assert torch.equal(found.log_weight[:first], lists[0].log_weight)
    assert not found.log_weight[first:].any()
    assert not found.features[first:].any()
