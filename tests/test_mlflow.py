"""The MLflow flavour: saved, loaded and asked through MLflow, a model gives the same answers."""

import shutil
from pathlib import Path

import pytest
import torch

import deepgat
from deepgat.errors import UserError
from deepgat.model import Model
from tiny import tiny_dataset, tiny_labels

mlflow = pytest.importorskip("mlflow")
pd = pytest.importorskip("pandas")

import deepgat.mlflow  # noqa: E402 - after the packages it needs

SHORT = {"epochs": 4, "device": "cpu"}


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """MLflow's old store of files, which needs no database."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    yield
    mlflow.set_tracking_uri(None)


@pytest.fixture
def club(my_graph) -> Model:
    return deepgat.fit(str(my_graph), "gcn", training=SHORT)


@pytest.fixture
def saved(club, tmp_path) -> Path:
    deepgat.mlflow.save_model(club, tmp_path / "saved")
    return tmp_path / "saved"


def test_the_loaded_model_is_the_saved_one(club, saved):
    found = deepgat.mlflow.load_model(str(saved))
    assert found.card == club.card
    ids = ["member-007", "member-003"]
    assert torch.equal(
        found.predict(nodes=ids).probabilities, club.predict(nodes=ids).probabilities
    )
    new = [{"id": "zoe", "age": 31, "visits": 9, "town": "Ashford"}]
    edges = [{"source": "zoe", "target": "member-007", "weight": 2}]
    assert torch.equal(found.predict_new(new, edges).labels, club.predict_new(new, edges).labels)


def test_the_python_function(club, saved):
    """The original graph is gone: all that is needed is in the folder."""
    ids = ["member-007", "member-003", "member-007"]
    expected = club.predict(nodes=ids)
    shutil.rmtree(saved.parent / "my-graph")
    function = mlflow.pyfunc.load_model(str(saved))
    table = function.predict(pd.DataFrame({"node": ids}, index=[5, 6, 7]))
    classes = club.card.class_names
    assert list(table.columns) == ["node", "label", "confidence", *(f"p:{c}" for c in classes)]
    assert list(table.index) == [5, 6, 7]
    assert list(table["node"]) == ids
    assert list(table["label"]) == [classes[c] for c in expected.labels.tolist()]
    shares = torch.tensor(table[[f"p:{c}" for c in classes]].to_numpy())
    assert torch.equal(shares, expected.probabilities.double())
    assert torch.equal(torch.tensor(table["confidence"].to_numpy()), expected.confidence.double())
    assert isinstance(function.get_raw_model(), Model)


def test_nodes_without_ids_are_numbers(tmp_path):
    data = tiny_dataset()
    model = deepgat.fit(data, "gcn", training=SHORT)
    deepgat.mlflow.save_model(model, tmp_path / "saved")
    function = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    table = function.predict(pd.DataFrame({"node": [7, 0]}))
    assert list(table["label"]) == [str(c) for c in model.predict(nodes=[7, 0]).labels.tolist()]
    assert list(table.columns) == ["node", "label", "confidence", "p0", "p1", "p2"]


def test_a_folder_is_saved_as_it_is(club, tmp_path):
    folder = club.save(tmp_path / "model", keep_graph=True)
    deepgat.mlflow.save_model(folder, tmp_path / "saved")
    for file in folder.rglob("*"):
        copy = tmp_path / "saved" / "deepgat_model" / file.relative_to(folder)
        assert file.is_dir() or copy.read_bytes() == file.read_bytes()
    files = [path.name for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    assert not [name for name in files if name.endswith((".pkl", ".pickle", ".pt", ".pth"))]


def test_a_model_without_its_graph_is_loaded_and_not_served(club, tmp_path):
    folder = club.save(tmp_path / "model")
    deepgat.mlflow.save_model(folder, tmp_path / "saved")
    assert deepgat.mlflow.load_model(str(tmp_path / "saved")).card == club.card
    with pytest.raises(mlflow.MlflowException, match="python_function"):
        mlflow.pyfunc.load_model(str(tmp_path / "saved"))


def test_several_graphs_of_independent_labels(tmp_path):
    model = deepgat.fit(tiny_labels(), "gcn", training=SHORT)
    deepgat.mlflow.save_model(model, tmp_path / "saved")
    assert deepgat.mlflow.load_model(str(tmp_path / "saved")).card == model.card


def test_logged_to_a_run(club):
    with mlflow.start_run() as run:
        info = deepgat.mlflow.log_model(club, name="clubs")
    assert set(info.flavors) == {"deepgat", "python_function"}
    assert deepgat.mlflow.load_model(info.model_uri).card == club.card
    table = mlflow.pyfunc.load_model(info.model_uri).predict(pd.DataFrame({"node": ["member-007"]}))
    assert list(table["node"]) == ["member-007"]
    assert run.info.run_id == info.run_id


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"node": ["nobody"]}, "the graph has no node 'nobody'"),
        ({"node": []}, "nodes is empty"),
        ({"id": ["member-007"]}, "node"),
    ],
)
def test_a_wrong_table_is_a_sentence_that_a_server_can_send(saved, table, told):
    function = mlflow.pyfunc.load_model(str(saved))
    with pytest.raises(mlflow.MlflowException, match=told) as found:
        function.predict(pd.DataFrame(table, dtype=str))
    assert found.value.get_http_status_code() == 400


def test_a_server_answers(saved):
    """The application that ``mlflow models serve`` runs."""
    testing = pytest.importorskip("fastapi.testclient")
    from mlflow.pyfunc import scoring_server

    client = testing.TestClient(scoring_server.init(mlflow.pyfunc.load_model(str(saved))))
    body = {"dataframe_records": [{"node": "member-007"}, {"node": "member-003"}]}
    answer = client.post("/invocations", json=body)
    assert answer.status_code == 200
    assert [row["node"] for row in answer.json()["predictions"]] == ["member-007", "member-003"]
    answer = client.post("/invocations", json={"dataframe_records": [{"node": "nobody"}]})
    assert answer.status_code == 400
    assert "the graph has no node 'nobody'" in answer.json()["message"]


def test_mistakes(club, saved, tmp_path):
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        deepgat.mlflow.save_model(club, saved)
    loaded = deepgat.mlflow.load_model(str(saved))
    with pytest.raises(UserError, match="give that folder's path as model"):
        deepgat.mlflow.save_model(loaded, tmp_path / "again")
    with pytest.raises(UserError, match="is not a model folder"):
        deepgat.mlflow.save_model(tmp_path / "nothing", tmp_path / "again")
    folder = club.save(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"spoilt")
    with pytest.raises(UserError, match="is damaged"):
        deepgat.mlflow.save_model(folder, tmp_path / "again")
    assert not (tmp_path / "again").exists()
