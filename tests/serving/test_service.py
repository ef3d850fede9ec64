"""What the service answers: the same as the model, whoever else asks at the same time."""

import asyncio
import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

import deepgat.view
from deepgat import Model, NodeDataset, UserError
from deepgat.serving import served as served_module
from deepgat.serving.bodies import PredictNewRequest, PredictRequest
from deepgat.serving.limits import Limits
from deepgat.serving.middleware import log_lines
from deepgat.serving.problems import Problem
from deepgat.serving.served import Served
from deepgat.serving.service import Service
from tiny import tiny_dataset, tiny_labels

from service_calls import Calls

NEW = {
    "nodes": [
        {"id": "new-1", "age": 31, "visits": 9, "town": "Ashford"},
        {"id": "new-2", "age": 45.5, "visits": 3, "town": "nowhere"},
    ],
    "edges": [
        {"source": "new-1", "target": "member-007", "weight": 2},
        {"source": "new-1", "target": "new-2", "weight": 1},
    ],
}


@pytest.fixture(scope="module")
def model(club):
    return Model.load(club / "model")


def metric(calls, name, **labels):
    text = calls("GET", "/metrics").text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    }.get(name)


def test_every_node_as_the_model_predicts_it(calls, model):
    data = model.training_data
    found = calls.post("/v1/predict", {"nodes": list(data.node_ids)}).json()["predictions"]
    expected = model.predict(data)
    assert [each["node"] for each in found] == list(data.node_ids)
    assert [each["label"] for each in found] == [
        data.class_names[label] for label in expected.labels.tolist()
    ]
    shares = torch.tensor([[each["probabilities"][c] for c in data.class_names] for each in found])
    torch.testing.assert_close(shares, expected.probabilities, atol=1e-6, rtol=0)
    sure = torch.tensor([each["confidence"] for each in found])
    torch.testing.assert_close(sure, expected.confidence, atol=1e-6, rtol=0)


def test_predictions_run_the_network_once_for_all(make_calls):
    calls = make_calls()
    for _ in range(3):
        assert calls.post("/v1/predict", {"nodes": ["member-001"]}).status_code == 200
    assert metric(calls, "deepgat_passes_total", route="/v1/predict") is None
    assert metric(calls, "deepgat_nodes_total") == 3


def test_probabilities_may_be_left_out_and_sets_asked_for(calls, model):
    body = {"nodes": ["member-001", "member-002"], "probabilities": False, "coverage": 0.9}
    found = calls.post("/v1/predict", body).json()["predictions"]
    assert set(found[0]) == {"node", "label", "confidence", "set"}
    data = model.training_data
    sets = model.predict(data, coverage=0.9).sets
    for each in found:
        row = sets[data.node_ids.index(each["node"])].tolist()
        assert each["set"] == [c for c, is_in in zip(data.class_names, row, strict=True) if is_in]


def test_new_nodes_as_the_model_predicts_them(calls, model):
    answer = calls.post("/v1/predict-new", NEW)
    assert answer.status_code == 200, answer.text
    found = answer.json()["predictions"]
    expected = model.predict_new(NEW["nodes"], NEW["edges"])
    assert [each["node"] for each in found] == ["new-1", "new-2"]
    for row, each in enumerate(found):
        shares = torch.tensor(list(each["probabilities"].values()))
        torch.testing.assert_close(shares, expected.probabilities[row], atol=1e-6, rtol=0)
        assert each["label"] == model.card.class_names[int(expected.labels[row])]


def test_new_nodes_with_sets_and_notes(calls):
    alone = {"nodes": NEW["nodes"][:1], "coverage": 0.9}
    found = calls.post("/v1/predict-new", alone).json()
    assert set(found["predictions"][0]["set"]) <= {"chess", "rowing", "theatre"}
    assert "no new edges" in found["notes"][0]


def test_new_nodes_of_different_requests_do_not_see_each_other(make_calls):
    """Ten requests with an edge to the same node at once: each is answered as if it were alone."""
    calls = make_calls(limits=Limits(threads=3))
    requests = [
        {
            "nodes": [{"id": "new", "age": 20 + 3 * k, "visits": k, "town": "Calder"}],
            "edges": [{"source": "new", "target": "member-007", "weight": 1}],
        }
        for k in range(10)
    ]
    before = calls.post("/v1/predict", {"nodes": ["member-007"]}).json()
    alone = [calls.post("/v1/predict-new", body).json() for body in requests]
    together = calls.at_once([("/v1/predict-new", body) for body in requests])
    assert [each.json() for each in together] == alone
    shares = [json.dumps(each["predictions"][0]["probabilities"]) for each in alone]
    assert len(set(shares)) == 10
    assert calls.post("/v1/predict", {"nodes": ["member-007"]}).json() == before


class Overlap:
    """Counts how many calls of some functions run at the same time."""

    def __init__(self):
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def of(self, function):
        def counted(*arguments, **options):
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            time.sleep(0.02)
            try:
                return function(*arguments, **options)
            finally:
                with self.lock:
                    self.now -= 1

        return counted


@pytest.mark.parametrize("chunked", [False, True])
def test_only_whole_graphs_are_run_by_several_threads(model, served, monkeypatch, chunked):
    """Operators learn from one global value which chunk of a graph they see."""
    small = replace(model.card.training, batches="clusters", clusters=4, most_nodes=16)
    training = small if chunked else model.card.training
    monkeypatch.setattr(served_module, "KEPT_BYTES", 0)
    ours = Served(replace(model, card=replace(model.card, training=training)))
    overlap = Overlap()
    monkeypatch.setattr(served_module, "field_outputs", overlap.of(served_module.field_outputs))
    monkeypatch.setattr(Model, "outputs", overlap.of(Model.outputs))
    calls = Calls(ours, Limits(threads=3))
    found = calls.at_once([("/v1/predict-new", NEW), ("/v1/explain", {"node": "member-001"})] * 6)
    calls.close()
    assert [each.status_code for each in found] == [200] * 12
    assert (overlap.most == 1) == chunked
    whole = served.predict_new(PredictNewRequest(**NEW))["predictions"]
    for answer in found[::2]:
        for mine, theirs in zip(answer.json()["predictions"], whole, strict=True):
            assert mine["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-6)


def test_explanations_are_the_models(calls, model):
    data = model.training_data
    found = calls.post("/v1/explain", {"node": "member-007", "top": 2}).json()
    expected = model.explain(data.node_ids.index("member-007"))
    assert found["label"] == data.class_names[expected.label]
    assert found["layers"].keys() == {str(layer) for layer in expected.layers}
    for layer, shares in expected.layers.items():
        given = torch.tensor(list(found["layers"][str(layer)]["probabilities"].values()))
        torch.testing.assert_close(given, shares[0], atol=1e-6, rtol=0)
    assert found["neighbours"][0]["node"] == "member-007"
    assert len(found["neighbours"]) == 3
    assert found["more_neighbours"] == len(expected.neighbors) - 3
    heard = {data.node_ids[int(u)]: k for k, u in enumerate(expected.neighbors)}
    for each in found["neighbours"]:
        weights = expected.attention[:, heard[each["node"]]]
        torch.testing.assert_close(torch.tensor(each["attention"]), weights, atol=1e-6, rtol=0)


def test_explanations_that_wait_share_a_run(make_calls, served, monkeypatch):
    monkeypatch.setattr(served_module, "KEPT_BYTES", 0)
    monkeypatch.setattr(served, "_explained", None)
    calls = make_calls(limits=Limits(threads=1))
    gate = threading.Event()
    calls.service.passes._executor.submit(gate.wait, 30)
    requests = [("/v1/explain", {"node": f"member-{k:03d}"}) for k in range(12)]
    requests.append(("/v1/explain", {"node": "nobody"}))
    threading.Timer(0.3, gate.set).start()
    found = calls.at_once(requests)
    assert [each.status_code for each in found] == [200] * 12 + [422]
    assert [each.json()["node"] for each in found[:12]] == [f"member-{k:03d}" for k in range(12)]
    assert metric(calls, "deepgat_passes_total", route="/v1/explain") == 1


def test_the_graph_in_the_folder_is_the_training_graph(model):
    kept, data = model.training_data, model.card.load_data()
    assert kept.feature_plan == data.feature_plan
    assert kept.graph.num_edges == data.graph.num_edges
    assert kept.node_ids == data.node_ids
    assert kept.class_names == data.class_names
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(kept.graph[name], data.graph[name])
    for with_attention in (False, True):
        ours, theirs = (model.outputs(each, with_attention) for each in (kept, data))
        torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-6, rtol=0)


def test_model_health_and_readiness(calls, model):
    info = calls("GET", "/v1/model").json()
    assert info["classes"] == ["chess", "rowing", "theatre"]
    assert info["nodes"] == model.kept.num_nodes
    assert info["columns"] == ["age", "visits", "town"]
    assert info["new_nodes"] is True
    assert calls("GET", "/health").json() == {"status": "alive"}
    assert calls("GET", "/ready").json() == {"status": "ready"}
    assert metric(calls, "deepgat_ready") == 1


def test_alive_but_not_ready_before_the_model_is_loaded_and_while_stopping(calls):
    served, calls.service.served = calls.service.served, None
    for path in ("/ready", "/v1/model", "/"):
        answer = calls("GET", path)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "not_ready"
        assert answer.headers["retry-after"]
    assert calls("GET", "/health").status_code == 200
    calls.service.served = served
    calls.service.stop()
    answer = calls.post("/v1/predict", {"nodes": ["member-001"]})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "stopping"
    assert metric(calls, "deepgat_ready") == 0


def test_a_request_that_has_begun_is_answered_while_stopping(make_calls):
    calls = make_calls(limits=Limits(threads=1))
    gate = threading.Event()
    calls.service.passes._executor.submit(gate.wait, 30)

    def stop():
        calls.service.stop()
        gate.set()

    threading.Timer(0.3, stop).start()
    found = calls.at_once([("/v1/explain", {"node": "member-003"}), ("/v1/predict-new", NEW)])
    assert [each.status_code for each in found] == [200, 200]


def test_metrics_count_by_route_and_status(make_calls):
    calls = make_calls()
    calls.post("/v1/predict", {"nodes": ["member-001"]})
    calls.post("/v1/predict", {"nodes": ["nobody"]})
    calls("GET", "/secret-name")
    assert metric(calls, "deepgat_requests_total", route="/v1/predict", status="200") == 1
    assert metric(calls, "deepgat_requests_total", route="/v1/predict", status="422") == 1
    assert metric(calls, "deepgat_requests_total", route="unmatched", status="404") == 1
    assert metric(calls, "deepgat_request_seconds_count", route="/v1/predict") == 2
    assert metric(calls, "process_resident_memory_bytes") > 1e6
    assert "secret" not in calls("GET", "/metrics").text


def test_description_and_its_page(calls):
    description = calls("GET", "/openapi.json").json()
    assert set(description["paths"]) == {
        "/", "/health", "/ready", "/metrics", "/v1/model", "/v1/predict", "/v1/predict-new",
        "/v1/explain",
    }  # fmt: skip
    body = description["paths"]["/v1/predict"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["required"] == ["nodes"]
    page = calls("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    for path in description["paths"]:
        assert f"<code>{path}</code>" in page.text
    for foreign in ("http://", "https://", "<script", "src="):
        assert foreign not in page.text


def test_the_page_is_made_once_and_sent_compressed(calls, monkeypatch):
    made = []

    def page(model, data):
        made.append(data.title)
        return "<!doctype html><title>é</title>" + "x" * 5000

    monkeypatch.setattr(deepgat.view, "page", page)
    plain = calls("GET", "/", headers={"Accept-Encoding": "identity"})
    assert plain.text.startswith("<!doctype html><title>é")
    packed = calls("GET", "/", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.text == plain.text
    assert int(packed.headers["content-length"]) < 500
    assert len(made) == 1


@pytest.mark.slow
def test_the_models_own_page(calls):
    page = calls("GET", "/").text
    assert page.startswith("<!doctype html>")
    assert "member-007" in page


def test_the_calls_in_the_documentation(calls):
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    found = re.findall(r"localhost:8000(/v1/\S+).*?-d '(.*?)'", text, re.DOTALL)
    assert [path for path, _ in found] == ["/v1/predict", "/v1/predict-new", "/v1/explain"]
    for path, body in found:
        answer = calls.post(path, json.loads(body))
        assert answer.status_code == 200, answer.text


def test_logs_have_request_ids_and_nothing_that_was_asked(calls, capsys):
    secret = "member-who-does-not-exist"
    answer = calls("POST", f"/v1/predict?q={secret}", json={"nodes": [secret]})
    assert answer.status_code == 422
    mine = calls("GET", "/health", headers={"X-Request-ID": "abc-1.2"})
    assert mine.headers["x-request-id"] == "abc-1.2"
    odd = calls("GET", f"/{secret}", headers={"X-Request-ID": f"{secret} {'x' * 99}"})
    assert odd.headers["x-request-id"] != mine.headers["x-request-id"]
    events = calls.events
    assert events[0]["id"] == answer.headers["x-request-id"]
    assert [event["status"] for event in events] == [422, 200, 404]
    assert events[0].keys() == {"event", "id", "method", "route", "status", "ms", "bytes"}
    for as_json in (True, False):
        for event in events:
            log_lines(as_json)(event)
    lines = capsys.readouterr().err.splitlines()
    assert json.loads(lines[0])["route"] == "/v1/predict"
    assert "route=/v1/predict status=422" in lines[3]
    assert not any(secret in line for line in lines)


def test_an_unexpected_failure_is_a_500_and_logged_without_its_message(calls, monkeypatch, served):
    def fail(*_):
        raise RuntimeError("the secret")

    monkeypatch.setattr(type(served), "_find", fail)
    answer = calls.post("/v1/predict", {"nodes": ["member-001"]})
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["code"] == "internal"
    assert answer.headers["x-request-id"] in error["message"]
    failure = calls.events[0]
    assert failure["event"] == "failure"
    assert failure["type"] == "RuntimeError"
    assert any("test_service.py" in place for place in failure["at"])
    assert "secret" not in json.dumps(calls.events)
    assert calls("GET", "/health").status_code == 200


def test_a_model_that_cannot_be_loaded_is_told():
    def load(on_pass):
        raise UserError("model/ is not a model folder")

    told = []
    service = Service(load, Limits())
    asyncio.run(service.start(lambda: told.append("stop")))
    service.close()
    assert told == ["stop"]
    assert isinstance(service.failure, UserError)


QUICK = {"epochs": 2, "device": "cpu"}


def test_independent_labels_and_sparse_features(tmp_path):
    """A graph without ids or columns: nodes are numbers, features the list x."""
    (graph, *_) = tiny_labels().graphs
    graph.val_mask[:4], graph.train_mask[:4] = True, False
    graph.x = (graph.x * (graph.x > 0)).to_sparse_csr()
    data = NodeDataset("labels", "Labels", (graph,), 5, 4, True, "public")
    made = deepgat.fit(data, "gcn", num_layers=2, training=QUICK)
    model = Model.load(made.save(tmp_path / "model", keep_graph=True))
    served, expected = Served(model), made.predict(data)
    found = served.predict(PredictRequest(nodes=["0", 3]))["predictions"]
    for each, node in zip(found, (0, 3), strict=True):
        assert each["label"] is None
        assert each["labels"] == [str(c) for c in range(4) if expected.labels[node, c]]
        shares = torch.tensor(list(each["probabilities"].values()))
        torch.testing.assert_close(shares, expected.probabilities[node], atol=1e-6, rtol=0)
    new = PredictNewRequest(nodes=[{"id": "new", "x": [0, 1, 0, 0.5, 0]}])
    assert served.predict_new(new)["predictions"][0]["node"] == "new"
    with pytest.raises(Problem) as told:
        served.predict(PredictRequest(nodes=["0"], coverage=0.9))
    assert (told.value.status, told.value.field) == (422, "coverage")


def test_a_model_without_attention_cannot_explain():
    served = Served(deepgat.fit(tiny_dataset(), "mlp", num_layers=2, training=QUICK))
    calls = Calls(served)
    answer = calls.post("/v1/explain", {"node": "7"})
    calls.close()
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "not_supported"
    assert "no attention to explain" in answer.json()["error"]["message"]


def test_a_graph_that_is_gone(tmp_path, model):
    lost = replace(model, kept=None, card=replace(model.card, dataset=str(tmp_path / "gone")))
    with pytest.raises(UserError, match=r"not in the model folder .* --keep-graph"):
        Served(lost)


def test_several_graphs_are_refused(monkeypatch, model):
    data = model.training_data
    several = replace(model, kept=None, dataset=replace(data, graphs=data.graphs * 2))
    with pytest.raises(UserError, match="2 graphs: serve a model that was trained on one"):
        Served(several)


def test_without_a_kept_graph_the_training_graph_is_read(model):
    """Without keep_graph the service needs the graph where it was; the answers are the same."""
    asked = PredictRequest(nodes=["member-007"])
    bare = Served(replace(model, kept=None))
    ours, theirs = (
        each.predict(asked)["predictions"][0]["probabilities"] for each in (bare, Served(model))
    )
    assert ours == pytest.approx(theirs, abs=1e-6)
