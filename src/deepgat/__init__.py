"""Deep graph attention networks: DeepGAT, its peers and its experiments, honestly measured.

>>> import deepgat
>>> data = deepgat.load_graph("digits")
>>> model = deepgat.fit(data, num_layers=4)     # doctest: +SKIP
>>> model.predict(data).labels, model.explain(7).classes     # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
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
    from deepgat.estimator import DeepGATClassifier
    from deepgat.fit_model import fit
    from deepgat.model import Model
    from deepgat.model_folder import load_run, save_run
    from deepgat.models import (
        APPNP,
        DAGNN,
        G2,
        GAT,
        GCN,
        GCNII,
        GRAND,
        JK,
        MLP,
        SAGE,
        Deep,
        DeepGAT,
        DeepOracle,
        GraphClassifier,
        LabelPropagation,
        LayerOutputs,
        Network,
        Oracle,
    )
    from deepgat.nn import NeighborAttention
    from deepgat.ops import Neighbors
    from deepgat.predictions import Explanation, Predictions
    from deepgat.training.evaluate import Evaluation, evaluate
    from deepgat.training.loop import FitResult
    from deepgat.training.recipes import Recipe, recipe
    from deepgat.training.run import Run, train_once
    from deepgat.training.settings import TrainSettings

__all__ = [
    "APPNP",
    "DAGNN",
    "G2",
    "GAT",
    "GCN",
    "GCNII",
    "GRAND",
    "JK",
    "MLP",
    "SAGE",
    "Deep",
    "DeepGAT",
    "DeepGATClassifier",
    "DeepOracle",
    "Evaluation",
    "Explanation",
    "FitResult",
    "GraphClassifier",
    "LabelPropagation",
    "LayerOutputs",
    "Model",
    "NeighborAttention",
    "Neighbors",
    "Network",
    "NodeDataset",
    "Oracle",
    "Predictions",
    "PropagateLabels",
    "Recipe",
    "Run",
    "SplitNodes",
    "TrainSettings",
    "UserError",
    "evaluate",
    "fit",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "load_graph",
    "load_run",
    "recipe",
    "save_run",
    "train_once",
]

_HOMES = (
    "errors", "data", "model", "fit_model", "model_folder", "models", "nn", "ops", "training.loop",
    "training.recipes", "training.run", "estimator",
)  # fmt: skip
"""Where the names above are looked for, in this order."""


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: torch and scikit-learn take seconds."""
    if name in __all__:
        for home in _HOMES:
            found = getattr(import_module(f"deepgat.{home}"), name, None)
            if found is not None:
                return found
    try:
        return import_module(f"deepgat.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'deepgat' has no attribute {name!r}") from error
