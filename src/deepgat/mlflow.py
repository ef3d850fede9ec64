"""The MLflow flavour: models saved, logged, loaded and served by MLflow.

>>> import deepgat.mlflow
>>> info = deepgat.mlflow.log_model(model, name="clubs")     # doctest: +SKIP
>>> deepgat.mlflow.load_model(info.model_uri).predict(nodes=["member-007"])     # doctest: +SKIP
>>> mlflow.pyfunc.load_model(info.model_uri).predict(frame)     # doctest: +SKIP

An MLflow model holds the model folder as deepgat writes it. As a ``python_function`` it takes a
table with a column ``node``, ids of nodes in the kept graph (numbers where nodes have no ids), and
returns a row for each: node, label, confidence, and the probability of every class. New nodes come
with features and edges, which is no table: :func:`load_model` and ``predict_new`` take them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepgat.data.names import Names
from deepgat.errors import UserError
from deepgat.model import Model
from deepgat.model_folder import check_can_keep, label_texts
from deepgat.tracking.mlflow_folder import (
    CONFIDENCE,
    DATA,
    FLAVOR,
    LABEL,
    NODE,
    probability_names,
    write_mlflow_model,
)
from deepgat.tracking.tracked import missing

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from mlflow.models import Model as MlflowModel
    from mlflow.models import ModelSignature
    from mlflow.models.model import ModelInfo

__all__ = ["load_model", "log_model", "save_model"]


def save_model(
    model: Model | str | os.PathLike[str],
    path: str | os.PathLike[str],
    mlflow_model: MlflowModel | None = None,
    signature: ModelSignature | None = None,
    pip_requirements: list[str] | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Save a model as an MLflow model, a new folder.

    Args:
        model: a trained model, which is saved with its graph; or the path of a model folder.
        path: the new folder.
        mlflow_model: the :class:`mlflow.models.Model` that flavours are added to.
        signature: left out, it says ``node`` in, and node, label, confidence, probabilities out.
        pip_requirements: left out: deepgat and what it runs on, in the installed versions.
        metadata: as in every flavour of MLflow.
    """
    _mlflow()
    rest = (mlflow_model, None, signature, pip_requirements, metadata)
    if not isinstance(model, Model):
        write_mlflow_model(Path(model), Path(path), *rest)
        return
    if model.run is None:
        raise UserError("this model was read from a folder: give that folder's path as model")
    with tempfile.TemporaryDirectory(prefix="deepgat-") as work:
        folder = model.save(Path(work) / "model", keep_graph=_can_keep(model))
        write_mlflow_model(folder, Path(path), *rest)


def log_model(
    model: Model | str | os.PathLike[str],
    name: str = "model",
    registered_model_name: str | None = None,
    **given: Any,
) -> ModelInfo:
    """Log a model to the active run of MLflow; a new run begins if there is none.

    Args:
        model: as in :func:`save_model`.
        name: of the logged model.
        registered_model_name: also register it as a version of this model.
        given: further arguments of :func:`save_model` and of ``mlflow.models.Model.log``.
    """
    return _mlflow().models.Model.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        registered_model_name=registered_model_name,
        model=model,
        **given,
    )


def load_model(model_uri: str, dst_path: str | None = None) -> Model:
    """The :class:`deepgat.Model` at a path, ``runs:/…``, ``models:/…``, or any URI of MLflow."""
    _mlflow()
    from mlflow.tracking.artifact_utils import _download_artifact_from_uri
    from mlflow.utils.model_utils import _get_flavor_configuration

    local = _download_artifact_from_uri(artifact_uri=model_uri, output_path=dst_path)
    found = _get_flavor_configuration(model_path=local, flavor_name=FLAVOR)
    return Model.load(Path(local) / found.get("data", DATA))


def _load_pyfunc(path: str) -> _Wrapper:
    """What ``mlflow.pyfunc.load_model`` calls, with the path of the model folder."""
    return _Wrapper(Model.load(path))


class _Wrapper:
    """A model as MLflow's generic Python function."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def get_raw_model(self) -> Model:
        return self.model

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:
        """The class of every node that the column ``node`` names.

        A node that the graph lacks is MLflow's error of a wrong parameter, so that its server
        answers with status 400 and the sentence.
        """
        from mlflow.exceptions import MlflowException

        try:
            return self._predict(model_input)
        except UserError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error

    def _predict(self, model_input: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        if not isinstance(model_input, pd.DataFrame) or NODE not in model_input.columns:
            raise UserError(
                f"expected a data frame with a column {NODE!r}, the ids of nodes in the model's "
                "graph; deepgat.mlflow.load_model(…).predict_new takes new nodes"
            )
        names, card = model_input[NODE].tolist(), self.model.card
        found = self.model.predict(nodes=names)
        columns = {
            NODE: names,
            LABEL: label_texts(found.labels, Names(classes=card.class_names).label),
            CONFIDENCE: found.confidence.double().tolist(),
        }
        shares = zip(probability_names(card), found.probabilities.double().T.tolist(), strict=True)
        return pd.DataFrame(columns | dict(shares), index=model_input.index)


def _can_keep(model: Model) -> bool:
    try:
        check_can_keep(model.training_data)
    except UserError:  # several graphs: MLflow can keep the model, and not serve it
        return False
    return True


def _mlflow() -> Any:
    try:
        import mlflow
        import mlflow.models
    except ImportError as error:
        raise missing("deepgat.mlflow", "mlflow", "mlflow") from error
    return mlflow
