"""Functions run by several processes at once, on gloo; and what they train here."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.distributed import Team
from deepgat.models import Network, build_network, find_system
from deepgat.training import loop
from deepgat.training.evaluate import evaluate
from deepgat.training.recipes import Recipe, drop_unsuited_self_training, recipe

PATIENCE_S = 120


def together(size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """[work(team, *args) of every process]; ``work`` is a module's function, its results plain."""
    context: BaseContext = multiprocessing.get_context("forkserver")  # forks what has torch loaded
    multiprocessing.set_forkserver_preload(["deepgat.training.loop", "deepgat.training.recipes"])
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        started = [
            context.Process(target=_join, args=(rank, size, folder, queue, work, args), daemon=True)
            for rank in range(size)
        ]
        for process in started:
            process.start()
        found: dict[int, Any] = {}
        try:
            for _ in started:
                rank, error = queue.get(timeout=PATIENCE_S)
                assert error is None, f"process {rank}: {error}"
                found[rank] = torch.load(Path(folder) / f"{rank}.pt")
            for process in started:
                process.join(PATIENCE_S)
        finally:
            for process in started:
                process.kill()
    return [found[rank] for rank in range(size)]


def _join(
    rank: int, size: int, folder: str, queue: Any, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size
    )
    try:
        result, error = work(Team(rank, size, torch.device("cpu")), *args), None
        torch.save(result, Path(folder) / f"{rank}.pt")
    except BaseException:
        error = traceback.format_exc()
    queue.put((rank, error))
    queue.close()
    queue.join_thread()
    if error is None:
        dist.destroy_process_group()


def odd_graph(seed: int = 0, multi_label: bool = False) -> Data:
    """60 nodes: a hub, isolated nodes, some edges in one direction only."""
    generator = torch.Generator().manual_seed(seed)
    n, classes = 60, 3
    pairs = torch.randint(n - 6, (2, 120), generator=generator)  # the last six have no edges
    hub = torch.stack([torch.zeros(40, dtype=torch.long), torch.arange(1, 41)])
    edge_index = torch.cat([pairs, pairs[:, :90].flip(0), hub, hub.flip(0)], 1)
    x = torch.randn(n, 7, generator=generator).double()
    y = torch.randint(classes, (n,), generator=generator)
    if multi_label:
        y = torch.randint(2, (n, classes), generator=generator).float()
    part = torch.randint(3, (n,), generator=generator)
    masks = {f"{name}_mask": part == i for i, name in enumerate(("train", "val", "test"))}
    return Data(x=x, edge_index=edge_index, y=y, **masks)


def dataset(kind: str = "odd") -> NodeDataset:
    graph = odd_graph(multi_label=kind == "labels")
    graphs = (graph,)
    if kind == "sparse":
        graph.x = (graph.x * (graph.x > 0.3)).to_sparse_csr()
    if kind == "values":  # edges named twice among them
        generator = torch.Generator().manual_seed(5)
        graph.edge_weight = torch.rand(graph.num_edges, generator=generator).double() + 0.1
        graph.edge_attr = torch.randn(graph.num_edges, 2, generator=generator).double()
    if kind == "few":  # fewer nodes than four processes want
        graphs = (Data(
            x=graph.x[:3], edge_index=torch.tensor([[0, 1], [1, 0]]), y=graph.y[:3],
            train_mask=torch.tensor([True, False, False]),
            val_mask=torch.tensor([False, True, False]),
            test_mask=torch.tensor([False, False, True]),
        ),)  # fmt: skip
    if kind == "many":
        graphs = (graph, odd_graph(1), odd_graph(2))
    return NodeDataset(kind, kind, graphs, 7, 3, kind == "labels", "public")


CASES: dict[str, dict[str, Any]] = {
    "paper": {"model": "deepgat", "preset": "paper", "num_layers": 3, "hidden_channels": 4,
              "heads": 2},
    "paper-sd": {"model": "deepgat", "preset": "paper", "score": "sd", "num_layers": 3,
                 "hidden_channels": 4, "heads": 8},
    "authors": {"model": "deepgat", "preset": "authors", "num_layers": 3, "hidden_channels": 4,
                "heads": 2},
    # no bias: before a batch norm its gradient is nothing but rounding, which Adam scales up
    "authors-batch": {"model": "deepgat", "preset": "authors", "num_layers": 2,
                      "hidden_channels": 4, "heads": 2, "norm": "batch", "bias": False},
    "deep": {"model": "deep", "num_layers": 4, "hidden_channels": 8, "attention_from": 2,
             "step_depth": 3, "training": {"decay_nodes": 20, "decay_nodes_heads": 30}},
    "second-stage": {"model": "deep", "num_layers": 3, "hidden_channels": 8, "attention_from": 1,
                     "training": {"patience": 1, "lr": 0.2}},
    "gcnii": {"model": "gcnii", "num_layers": 4, "hidden_channels": 8},
    "gat-in-gcnii": {"model": "gcnii", "conv": "gat", "num_layers": 3, "hidden_channels": 8},
    "deepgat-in-gcnii": {"model": "gcnii", "conv": "deepgat", "num_layers": 3,
                         "hidden_channels": 8},
    "g2": {"model": "g2", "num_layers": 3, "hidden_channels": 8},
    "deepgat-in-g2": {"model": "g2", "conv": "deepgat", "num_layers": 3, "hidden_channels": 8},
    "gat": {"model": "gat", "preset": "authors", "score": "ad", "num_layers": 2,
            "hidden_channels": 4},
    "gat-dp": {"model": "gat", "preset": "paper", "num_layers": 3, "hidden_channels": 4},
    "oracle": {"model": "oracle", "num_layers": 2, "hidden_channels": 4, "heads": 2},
    "pairnorm": {"model": "gcn", "num_layers": 3, "hidden_channels": 8, "norm": "pairnorm",
                 "feature_norm": "pairnorm"},
    "pairnorm-si": {"model": "pairnorm", "num_layers": 3, "hidden_channels": 8},
    "sage": {"model": "sage", "num_layers": 2, "hidden_channels": 8},
    "dropedge": {"model": "dropedge", "num_layers": 3, "hidden_channels": 8},
    "dagnn": {"model": "dagnn", "num_layers": 4, "hidden_channels": 8},
    "grand": {"model": "grand", "num_layers": 4, "hidden_channels": 8, "norm": "batch"},
    "grand-projected-first": {"model": "grand", "num_layers": 3, "hidden_channels": 8,
                              "project_first": True, "norm": "batch"},
    "prenorm": {"model": "prenorm", "num_layers": 3, "hidden_channels": 8, "drop_edge": 0.2},
    "gat-in-prenorm": {"model": "prenorm", "conv": "gat", "num_layers": 3, "hidden_channels": 8,
                       "heads": 2},
    "deepgat-in-prenorm": {"model": "prenorm", "conv": "deepgat", "num_layers": 3,
                           "hidden_channels": 8},
    "prenorm-batch": {"model": "prenorm", "num_layers": 2, "hidden_channels": 8,
                      "input_norm": "batch"},
}  # fmt: skip
DROPOUT = {"dropout": 0.5, "attention_dropout": 0.4}
NONE = dict.fromkeys(("dropout", "attention_dropout", "input_dropout", "output_dropout"), 0.0)


def plan_of(name: str, more: dict[str, Any] | None = None) -> Recipe:
    """The recipe of a case, with those of the settings ``more`` that its system has."""
    case = CASES[name]
    kinds = find_system(case["model"]).config.kinds()
    known = {key: value for key, value in (more or {}).items() if key in kinds}
    return recipe(dataset="digits", **{**case, **known})


@dataclass(frozen=True)
class Job:
    """Some models on one kind of data."""

    names: tuple[str, ...]
    kind: str = "odd"
    drop: bool = True
    checkpoint: str = "auto"


def train_all(team: Team | None, jobs: list[Job]) -> dict[str, dict[str, Any]]:
    """Five steps of every model of every job, in double precision: losses, weights and logits."""
    return {
        f"{name}, {job.kind}, {'dropout' if job.drop else 'no dropout'}, {job.checkpoint}": result
        for job in jobs
        for name, result in train(team, job.names, job.kind, job.drop, job.checkpoint).items()
    }


def train(
    team: Team | None,
    names: Sequence[str],
    kind: str = "odd",
    drop: bool = True,
    checkpoint: str = "auto",
) -> dict[str, dict[str, Any]]:
    results = {}
    data = dataset(kind)
    for name in names:
        no_labels = {"label_hops": 0} if kind == "labels" else {}
        plan = drop_unsuited_self_training(
            plan_of(name, {**(DROPOUT if drop else NONE), **no_labels}), data
        )
        torch.manual_seed(0)
        model = network_of(plan, data).double()
        if name.startswith("pairnorm"):  # biases before it have no gradient, as with batch norm
            for conv in model.convs[:-1]:
                conv.bias.requires_grad_(False)
        own = plan.training
        monitor = own.monitor if own.self_training else "train-loss"
        training = replace(own, epochs=5, monitor=monitor, device="cpu", checkpoint=checkpoint)
        fitted = loop.train(model, data, training, team=team)
        scores = evaluate(model, data, "cpu", team)
        results[name] = {
            "history": torch.tensor([[e.loss, e.val_loss, e.val_f1] for e in fitted.history]),
            "weights": {key: item.clone() for key, item in model.state_dict().items()},
            "scores": torch.tensor([*scores.micro_f1.values(), *scores.loss.values()]),
            "logits": scores.logits,
        }
    return results


def network_of(plan: Recipe, data: NodeDataset) -> Network:
    """A network for this data, its weights drawn from torch's generator."""
    return build_network(
        plan.system,
        plan.settings,
        data.num_features,
        data.num_classes,
        multi_label=data.multi_label,
        edge_dim=data.num_edge_features,
    )


def apart(alone: dict[str, Any], team: list[dict[str, Any]]) -> float:
    """The largest difference of any number between one process and any of several."""
    found = [(x - y).abs().max() for x, y in zip(alone["logits"], team[0]["logits"], strict=True)]
    for other in team:
        assert other["weights"].keys() == alone["weights"].keys()
        pairs = [(other[name], alone[name]) for name in ("history", "scores")]
        pairs += [(item, alone["weights"][key]) for key, item in other["weights"].items()]
        found += [(x.double() - y.double()).abs().max() for x, y in pairs]
    return max(float(x) for x in found)
