"""Deep graph attention networks: DeepGAT, its peers and its experiments, honestly measured.

>>> import deepgat
>>> data = deepgat.load_graph("digits")
>>> run = deepgat.train_once(data, deepgat.recipe("paper", layers=4))     # doctest: +SKIP
"""

from deepgat.data import (
    NodeDataset,
    PropagateLabels,
    SplitNodes,
    from_networkx,
    from_pandas,
    from_pyg,
    load_graph,
)
from deepgat.errors import UserError
from deepgat.nn import (
    G2,
    GAT,
    GCN,
    GCNII,
    DeepGAT,
    LayerOutputs,
    ModelSettings,
    NeighborAttention,
    OracleGAT,
    build_model,
    model_settings,
)
from deepgat.ops import Neighbors
from deepgat.recipes import Recipe, recipe
from deepgat.runs import Run, train_once
from deepgat.saving import load_run, save_run
from deepgat.train import Evaluation, FitResult, TrainSettings, evaluate, fit

__version__ = "0.1.0"

__all__ = [
    "G2",
    "GAT",
    "GCN",
    "GCNII",
    "DeepGAT",
    "Evaluation",
    "FitResult",
    "LayerOutputs",
    "ModelSettings",
    "NeighborAttention",
    "Neighbors",
    "NodeDataset",
    "OracleGAT",
    "PropagateLabels",
    "Recipe",
    "Run",
    "SplitNodes",
    "TrainSettings",
    "UserError",
    "build_model",
    "evaluate",
    "fit",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "load_graph",
    "load_run",
    "model_settings",
    "recipe",
    "save_run",
    "train_once",
]
