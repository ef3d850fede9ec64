"""A model folder as an MLflow model: the folder itself beside a description, nothing pickled."""

from __future__ import annotations

import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepgat.data.kept_graph import KeptGraph
from deepgat.errors import UserError
from deepgat.files import writing
from deepgat.model_folder import MODEL_FOLDER, load_run, read_calibration, read_graph
from deepgat.training.run import ModelCard, versions

if TYPE_CHECKING:
    from mlflow.models import Model as MlflowModel
    from mlflow.models import ModelSignature

FLAVOR = "deepgat"
LOADER = "deepgat.mlflow"
"""The module whose ``_load_pyfunc`` MLflow calls."""
DATA = "deepgat_model"
"""The model folder inside that of MLflow."""
NODE, LABEL, CONFIDENCE = "node", "label", "confidence"
"""Columns of a pyfunc's input and output."""


def write_mlflow_model(
    folder: Path,
    path: Path,
    mlflow_model: MlflowModel | None = None,
    run_id: str | None = None,
    signature: ModelSignature | None = None,
    pip_requirements: list[str] | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write the MLflow model of a model folder as a new folder.

    A model with its graph can be served (``python_function``). One without is there to be loaded
    by :func:`deepgat.mlflow.load_model` alone.
    """
    from mlflow import pyfunc
    from mlflow.models import Model
    from mlflow.utils.environment import _PythonEnv

    _, card = load_run(folder)  # which refuses a damaged one
    read_calibration(folder, card.num_classes)
    graph = read_graph(folder, card)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is not an empty folder: choose another path")
    described = Model() if mlflow_model is None else mlflow_model
    if run_id is not None:
        described.run_id = run_id
    if metadata is not None:
        described.metadata = metadata
    requirements = _requirements() if pip_requirements is None else pip_requirements
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        for name in MODEL_FOLDER.files:
            if (folder / name).is_dir():
                shutil.copytree(folder / name, path / DATA / name)
            elif (folder / name).exists():
                (path / DATA).mkdir(exist_ok=True)
                shutil.copyfile(folder / name, path / DATA / name)
        (path / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements))
        _PythonEnv(
            python=platform.python_version(),
            build_dependencies=[],
            dependencies=["-r requirements.txt"],
        ).to_yaml(str(path / "python_env.yaml"))
        if graph is not None:
            described.signature = signature or _signature(card, graph)
            pyfunc.add_to_model(
                described, loader_module=LOADER, data=DATA, python_env="python_env.yaml"
            )
        described.add_flavor(FLAVOR, deepgat_version=versions()["deepgat"], data=DATA)
        described.save(str(path / "MLmodel"))


def _requirements() -> list[str]:
    """What an environment needs to load the model: the versions that are installed here."""
    found = []
    for name in ("deepgat", "torch", "torch_geometric", "numpy", "pandas"):
        try:
            found.append(f"{name}=={version(name).split('+')[0]}")
        except PackageNotFoundError:  # run from a source folder
            found.append(name)
    return found


def _signature(card: ModelCard, graph: KeptGraph) -> ModelSignature:
    """A column ``node`` of ids, or of numbers where nodes have no ids; out: as ``deepgat predict``
    with the probability of every class."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    ids = DataType.long if graph.ids is None else DataType.string
    outputs: list[Any] = [ColSpec(ids, NODE), ColSpec(DataType.string, LABEL)]
    outputs += [ColSpec(DataType.double, name) for name in (CONFIDENCE, *probability_names(card))]
    return ModelSignature(inputs=Schema([ColSpec(ids, NODE)]), outputs=Schema(outputs))


def probability_names(card: ModelCard) -> list[str]:
    """Columns of probabilities, named as in ``predictions.csv``."""
    if card.class_names:
        return [f"p:{name}" for name in card.class_names]
    return [f"p{number}" for number in range(card.num_classes)]
