"""Models of every system, and graphs of every shape, to export and to compare."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from deepgat import Model
from deepgat.export import describe
from deepgat.export.formats import FORMATS
from deepgat.export.program import trace
from deepgat.models import build_network, find_system
from deepgat.models.config import Config
from deepgat.training.run import ModelCard
from deepgat.training.settings import TrainSettings
from networks import settings_of

from graphs import edges, random_edges

FEATURES, CLASSES, EDGE_FEATURES = 6, 3, 2
NO_EDGES = torch.empty(2, 0, dtype=torch.long)
STAR = torch.stack([torch.arange(1, 40), torch.zeros(39, dtype=torch.long)])
REPEATED = random_edges(9, 60)
SHAPES: list[tuple[int, Tensor]] = [
    (1, NO_EDGES),
    (1, torch.zeros(2, 3, dtype=torch.long)),
    (5, NO_EDGES),
    (40, torch.cat([STAR, STAR.flip(0)[:, ::2]], 1)),
    (12, torch.cat([REPEATED, REPEATED.flip(1), torch.arange(9).repeat(2, 2)], 1)),
    (4, edges((2, 1), (1, 2), (3, 0), (2, 1), (0, 0))),
]
"""(n, edge_index): a node alone, with loops, no edges, a hub, repeats and loops, isolated nodes."""


@dataclass(frozen=True)
class Case:
    """One model; the graphs have weights and features of edges if it reads them."""

    system: str
    settings: dict[str, Any] = field(default_factory=dict)
    preset: str | None = None
    sparse: bool = False
    weights: bool = False
    edge_dim: int = 0
    multi_label: bool = False

    @property
    def name(self) -> str:
        own = [f"{key}-{value}" for key, value in self.settings.items() if key != "members"]
        flags = ("sparse", "weights", "edge_dim", "multi_label")
        parts = [self.system, self.preset, *own, *(flag for flag in flags if getattr(self, flag))]
        return "_".join(str(part) for part in parts if part)

    def model(self) -> Model:
        config = self._config()
        torch.manual_seed(0)
        network = build_network(
            self.system,
            config,
            FEATURES,
            CLASSES,
            multi_label=self.multi_label,
            edge_dim=self.edge_dim or None,
        )
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d):
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
        card = ModelCard(
            self.system,
            config,
            TrainSettings(device="cpu"),
            "graph",
            "public",
            FEATURES,
            CLASSES,
            self.multi_label,
            self.edge_dim,
            ["red", "green", "blue"],
            edge_weights=self.weights,
        )
        return Model(network.eval(), card)

    def _config(self) -> Config:
        if self.system == "ensemble":
            return find_system("ensemble").network.Config(**self.settings)
        known = find_system(self.system).network.Config.kinds()
        small = {"num_layers": 2, "hidden_channels": 4, "heads": 2}
        sizes = {name: value for name, value in small.items() if name in known}
        return settings_of(self.system, self.preset, **(sizes | self.settings))

    def graph(self, n: int, edge_index: Tensor) -> Data:
        draw = torch.Generator().manual_seed(n)
        count = edge_index.size(1)
        data = Data(x=torch.randn(n, FEATURES, generator=draw), edge_index=edge_index)
        known = torch.randint(-1, CLASSES, (n,), generator=draw)
        data.y = known
        if self.multi_label:
            data.y = torch.zeros(n, CLASSES)
        data.train_mask = known >= 0
        if self.sparse:
            data.x = (data.x * (data.x > 0.3)).to_sparse_csr()
        if self.weights:
            drawn = torch.rand(count, generator=draw)
            data.edge_weight = drawn * (torch.rand(count, generator=draw) > 0.2)
        if self.edge_dim:
            data.edge_attr = torch.randn(count, self.edge_dim, generator=draw)
        return data

    def inputs(self, model: Model, graph: Data) -> dict[str, Tensor]:
        """What the program takes, from the same graph as the model."""
        found = {"edge_index": graph.edge_index}
        if self.sparse:
            parts = graph.x.crow_indices(), graph.x.col_indices(), graph.x.values()
            found |= dict(zip(("x_crow", "x_col", "x_value"), parts, strict=True))
        else:
            found["x"] = graph.x
        if self.weights:
            found["edge_weight"] = graph.edge_weight
        if self.edge_dim:
            found["edge_attr"] = graph.edge_attr
        if model.network.label_hops:
            found["known_labels"] = torch.where(graph.train_mask, graph.y, -1)
        return found


def write(folder: Path, case: Case, formats: tuple[str, ...]) -> None:
    """NAME.FORMAT for each format, and NAME.npz: the graphs, and what the model says of them."""
    model = case.model()
    programs = {
        checked: trace(model.network, model.card, case.sparse, checked=checked)
        for checked in {FORMATS[name].compiled for name in formats}
    }
    about = describe(model.network, model.card, next(iter(programs.values())))
    for name in formats:
        kind = FORMATS[name]
        (folder / f"{case.name}.{name}").write_bytes(kind.write(programs[kind.compiled], about))
    arrays: dict[str, np.ndarray] = {}
    for number, shape in enumerate(SHAPES):
        graph = case.graph(*shape)
        outputs = model.outputs(graph)
        layers = [outputs.layer_logits[layer] for layer in about["layers"]]
        wanted = {
            "logits": outputs.logits,
            "probabilities": model.predict(graph).probabilities,
            "layer_logits": torch.stack(layers),
        }
        for name, x in case.inputs(model, graph).items():
            arrays[f"{number}/in/{name}"] = x.numpy()
        for name, x in wanted.items():
            arrays[f"{number}/out/{name}"] = x.detach().numpy()
    np.savez(folder / f"{case.name}.npz", **arrays)


def differences(folder: Path) -> dict[str, float]:
    """The largest difference of every file in the folder, run in a process without deepgat."""
    script = Path(__file__).with_name("exported_runs.py")
    command = [sys.executable, str(script), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found
