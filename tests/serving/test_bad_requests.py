"""Bad requests: each is refused with a 4xx, a code, one sentence and the field that is wrong."""

import asyncio
import base64
import json
import re
import threading

import pytest

from deepgat.serving.limits import Limits

from service_calls import Calls

TOKEN = "correct-horse-battery-staple"
PREDICT, NEW, EXPLAIN = "/v1/predict", "/v1/predict-new", "/v1/explain"
JSON = {"Content-Type": "application/json"}
SMALL = Limits(max_body=4000, max_nodes=5, timeout=20)
ROW = {"id": "new", "age": 30, "visits": 1, "town": "Calder"}
EDGE = {"source": "new", "target": "member-001"}


def edge(**changes):
    return EDGE | {"weight": 1} | changes


def deep(depth):
    return b'{"nodes":' + b"[" * depth + b"]" * depth + b"}"


BODIES = {
    # name: (path, body as bytes or as a value, status, code, field, part of the sentence)
    "nothing": (PREDICT, b"", 400, "invalid_json", None, "not valid JSON"),
    "half an object": (PREDICT, b'{"nodes": ["a"', 400, "invalid_json", None, "line 1"),
    "two objects": (PREDICT, b'{"nodes":["a"]}{}', 400, "invalid_json", None, "trailing"),
    "form": (PREDICT, b"nodes=member-001", 400, "invalid_json", None, "not valid JSON"),
    "comment": (PREDICT, b'{"nodes":["a"]} // yes', 400, "invalid_json", None, "not valid JSON"),
    "no UTF-8": (PREDICT, b'{"nodes":["\xff\xfe"]}', 400, "invalid_json", None, "not valid JSON"),
    "UTF-16": (PREDICT, '{"nodes":["a"]}'.encode("utf-16"), 400, "invalid_json", None, "not valid"),
    "half a character": (PREDICT, b'{"nodes":["\\ud800"]}', 400, "invalid_json", None, "not valid"),
    "a NUL": (PREDICT, b'{"nodes":["a\x00b"]}', 400, "invalid_json", None, "not valid JSON"),
    "deep": (PREDICT, deep(1500), 400, "invalid_json", None, "recursion"),
    "NaN": (NEW, b'{"nodes":[{"id":"n","age":NaN}]}', 400, "invalid_json", None, "not valid JSON"),
    "infinity": (NEW, b'{"nodes":[{"id":"n","age":-Infinity}]}', 400, "invalid_json", None, "not"),
    "a list": (PREDICT, ["member-001"], 422, "invalid", None, "not a JSON object"),
    "a number": (PREDICT, 7, 422, "invalid", None, "not a JSON object"),
    "null": (PREDICT, None, 422, "invalid", None, "not a JSON object"),
    "no nodes": (PREDICT, {}, 422, "invalid", "nodes", "nodes is missing"),
    "empty nodes": (PREDICT, {"nodes": []}, 422, "invalid", "nodes", "at least 1 item"),
    "one node": (PREDICT, {"nodes": "member-001"}, 422, "invalid", "nodes", "valid list"),
    "misspelt": (PREDICT, {"node": ["a"], "nodes": ["a"]}, 422, "invalid", "node", "nodes"),
    "unknown id": (PREDICT, {"nodes": ["member-001", "x"]}, 422, "unknown_node", "nodes[1]", "'x'"),
    "unknown number": (PREDICT, {"nodes": [7]}, 422, "unknown_node", "nodes[0]", "no node '7'"),
    "id true": (PREDICT, {"nodes": [True]}, 422, "invalid", "nodes[0]", "the id of a node"),
    "id 1.5": (PREDICT, {"nodes": [1.5]}, 422, "invalid", "nodes[0]", "the id of a node"),
    "id null": (PREDICT, {"nodes": [None]}, 422, "invalid", "nodes[0]", "the id of a node"),
    "id list": (PREDICT, {"nodes": [["a"]]}, 422, "invalid", "nodes[0]", "the id of a node"),
    "id empty": (PREDICT, {"nodes": [""]}, 422, "invalid", "nodes[0]", "the id of a node"),
    "id negative": (PREDICT, {"nodes": [-1]}, 422, "invalid", "nodes[0]", "the id of a node"),
    "id huge": (PREDICT, {"nodes": [10**400]}, 422, "invalid", "nodes[0]", "the id of a node"),
    "id long": (PREDICT, {"nodes": ["x" * 1001]}, 422, "invalid", "nodes[0]", "1000 characters"),
    "id strange": (PREDICT, {"nodes": ["\x1b[31m"]}, 422, "unknown_node", "nodes[0]", "no node"),
    "many": (PREDICT, {"nodes": ["member-001"] * 6}, 413, "too_many", "nodes", "may have 5"),
    "coverage 2": (PREDICT, {"nodes": ["member-001"], "coverage": 2}, 422, "invalid", "coverage",
                   "less than 1"),
    "coverage 0": (PREDICT, {"nodes": ["member-001"], "coverage": 0}, 422, "invalid", "coverage",
                   "greater than 0"),
    "coverage text": (PREDICT, {"nodes": ["member-001"], "coverage": "0.9"}, 422, "invalid",
                      "coverage", "number"),
    "probabilities": (PREDICT, {"nodes": ["member-001"], "probabilities": "no"}, 422, "invalid",
                      "probabilities", "boolean"),
    "new: texts": (NEW, {"nodes": ["new"]}, 422, "invalid", "nodes[0]", "dictionary"),
    "new: no id": (NEW, {"nodes": [{"age": 3}]}, 422, "invalid", "nodes", "id"),
    "new: old id": (NEW, {"nodes": [ROW | {"id": "member-001"}]}, 422, "invalid", "nodes[0].id",
                    "'member-001' is a node of the graph already"),
    "new: twice": (NEW, {"nodes": [ROW, ROW]}, 422, "invalid", "nodes[1].id", "a second time"),
    "new: no number": (NEW, {"nodes": [ROW | {"age": "old"}]}, 422, "invalid", "nodes[0].age",
                       "'old'"),
    "new: object": (NEW, {"nodes": [ROW | {"age": {"years": 3}}]}, 422, "invalid", "nodes[0].age",
                    "expected a number"),
    "new: huge": (NEW, {"nodes": [ROW | {"age": 10**400}]}, 422, "invalid", "nodes[0].age",
                  "expected a number"),
    "new: 1e999": (NEW, b'{"nodes":[{"id":"n","age":1e999}]}', 422, "invalid", "nodes[0].age",
                   "expected a number"),
    "new: no column": (NEW, {"nodes": [{"id": "new", "age": 3}]}, 422, "invalid", "nodes",
                       "'visits'"),
    "new: many": (NEW, {"nodes": [ROW | {"id": k} for k in range(6)]}, 413, "too_many", "nodes",
                  "may have 5"),
    "edges: no list": (NEW, {"nodes": [ROW], "edges": {}}, 422, "invalid", "edges", "valid list"),
    "edges: pairs": (NEW, {"nodes": [ROW], "edges": [["new", "member-001"]]}, 422, "invalid",
                     "edges[0]", "dictionary"),
    "edges: no target": (NEW, {"nodes": [ROW], "edges": [{"source": "new"}]}, 422, "invalid",
                         "edges", "target"),
    "edges: nobody": (NEW, {"nodes": [ROW], "edges": [edge(target="nobody")]}, 422, "invalid",
                      "edges[0].target", "'nobody'"),
    "edges: old ones": (NEW, {"nodes": [ROW], "edges": [edge(source="member-002")]}, 422,
                        "invalid", "edges", "in the graph already"),
    "edges: no weight": (NEW, {"nodes": [ROW], "edges": [EDGE]}, 422, "invalid", "edges",
                         "weights"),
    "edges: weight below 0": (NEW, {"nodes": [ROW], "edges": [edge(weight=-1)]}, 422, "invalid",
                              "edges[0].weight", "-1"),
    "edges: weight text": (NEW, {"nodes": [ROW], "edges": [edge(weight="much")]}, 422, "invalid",
                           "edges[0].weight", "'much'"),
    "edges: many": (NEW, b'{"nodes":[{"id":1}],"edges":[%s]}' % b",".join([b"{}"] * 101), 413,
                    "too_many", "edges", "may have 100"),
    "explain: nobody": (EXPLAIN, {"node": "nobody"}, 422, "unknown_node", "node", "'nobody'"),
    "explain: none": (EXPLAIN, {"top": 3}, 422, "invalid", "node", "node is missing"),
    "explain: top 0": (EXPLAIN, {"node": "member-001", "top": 0}, 422, "invalid", "top", "1"),
    "explain: top text": (EXPLAIN, {"node": "member-001", "top": "3"}, 422, "invalid", "top",
                          "integer"),
    "explain: top huge": (EXPLAIN, {"node": "member-001", "top": 10**30}, 422, "invalid", "top",
                          "1000"),
}  # fmt: skip


def assert_refused(answer, status, code, field=None, part=""):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert error.keys() == {"code", "message", "field"}
    assert error["code"] == code
    assert error["field"] == field, error
    message = error["message"]
    assert part in message, message
    assert len(message) > 20
    assert message.isprintable(), message


@pytest.fixture(scope="module")
def small(served):
    calls = Calls(served, SMALL)
    yield calls
    calls.close()


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body(small, name):
    path, body, *expected = BODIES[name]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert_refused(small("POST", path, content=content, headers=JSON), *expected)


def test_there_are_forty():
    assert len(BODIES) >= 40


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "wrong_type"),
        ({"Content-Type": "text/plain"}, "wrong_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "wrong_type"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, "wrong_type"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "wrong_encoding"),
    ],
)
def test_a_body_of_another_type(small, headers, code):
    answer = small("POST", PREDICT, content=b'{"nodes":["member-001"]}', headers=headers)
    assert_refused(answer, 415, code)


def test_a_type_with_a_charset_is_json(small):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    answer = small("POST", PREDICT, content=b'{"nodes":["member-001"]}', headers=headers)
    assert answer.status_code == 200


def test_a_large_body_with_and_without_its_length(small):
    whole = json.dumps({"nodes": ["x" * 5000]}).encode()
    announced = small("POST", PREDICT, content=whole, headers=JSON)
    assert_refused(announced, 413, "too_large", None, "more than 4000 bytes")

    async def pieces():
        for start in range(0, len(whole), 100):
            yield whole[start : start + 100]

    chunked = small("POST", PREDICT, content=pieces(), headers=JSON)
    assert "content-length" not in chunked.request.headers
    assert_refused(chunked, 413, "too_large", None, "more than 4000 bytes")


def test_an_endless_body_is_not_read_to_its_end(small):
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 10**7:
            sent += 1000
            yield b" " * 1000

    assert_refused(small("POST", PREDICT, content=endless(), headers=JSON), 413, "too_large")
    assert sent < 100_000


def test_a_length_that_lies(small):
    headers = JSON | {"Content-Length": "9" * 5000}
    answer = small("POST", PREDICT, content=b"{}", headers=headers)
    assert_refused(answer, 413, "too_large")


def test_a_slow_body(make_calls):
    calls = make_calls(limits=Limits(timeout=0.2))

    async def slow():
        yield b'{"nodes":'
        await asyncio.sleep(5)

    answer = calls("POST", PREDICT, content=slow(), headers=JSON)
    assert_refused(answer, 408, "body_timeout", None, "0.2 s")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/predict", 405, "wrong_method"),
        ("DELETE", "/v1/model", 405, "wrong_method"),
        ("POST", "/", 405, "wrong_method"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/../../etc/passwd", 404, "not_found"),
        ("GET", "/%00%ff", 404, "not_found"),
    ],
)
def test_a_wrong_path_or_method(small, method, path, status, code):
    assert_refused(small(method, path), status, code)


def basic(text):
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        f"Token {TOKEN}",
        basic(TOKEN),
        basic("user:wrong"),
        "Basic ???",
        "Bearer ü".encode("latin-1"),
    ],
)
def test_a_wrong_token(make_calls, header):
    calls = make_calls(token=TOKEN)
    headers = {} if header is None else {"Authorization": header}
    for method, path in (("POST", PREDICT), ("GET", "/"), ("GET", "/metrics"), ("GET", "/docs")):
        answer = calls(method, path, headers=headers)
        assert_refused(answer, 401, "unauthorized", None, "Authorization: Bearer TOKEN")
        assert "Basic" in answer.headers["www-authenticate"]
        assert TOKEN not in answer.text
    assert calls("GET", "/health", headers=headers).status_code == 200
    assert calls("GET", "/ready", headers=headers).status_code == 200


@pytest.mark.parametrize("header", [f"Bearer {TOKEN}", f"bearer  {TOKEN}", basic(f"me:{TOKEN}")])
def test_the_right_token(make_calls, header):
    calls = make_calls(token=TOKEN)
    headers = {"Authorization": header, "Host": "predictions.example"}
    answer = calls("POST", PREDICT, json={"nodes": ["member-001"]}, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::2]:80",
        "",
    ],
)
def test_another_host_without_a_token(small, host):
    """A page from elsewhere cannot use a browser to ask: its name is not this machine's."""
    answer = small("POST", PREDICT, json={"nodes": ["member-001"]}, headers={"Host": host})
    assert_refused(answer, 421, "wrong_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000"])
def test_a_loopback_host(small, host):
    answer = small("POST", PREDICT, json={"nodes": ["member-001"]}, headers={"Host": host})
    assert answer.status_code == 200


def test_too_many_at_once_are_told_to_come_back(make_calls):
    calls = make_calls(limits=Limits(threads=1, waiting=3))
    gate = threading.Event()
    calls.service.passes._executor.submit(gate.wait, 30)
    threading.Timer(0.5, gate.set).start()
    body = {"nodes": [ROW]}
    found = calls.at_once([(NEW, body)] * 10)
    assert sorted(each.status_code for each in found) == [200] * 4 + [503] * 6
    for each in found:
        if each.status_code == 503:
            assert_refused(each, 503, "busy", None, "try again")
            assert each.headers["retry-after"] == "1"
    assert calls.post(NEW, body).status_code == 200
    assert calls.service.passes.taken == 0


def test_an_answer_that_takes_too_long(make_calls):
    calls = make_calls(limits=Limits(threads=1, timeout=0.2))
    gate = threading.Event()
    calls.service.passes._executor.submit(gate.wait, 30)
    late = calls.post(NEW, {"nodes": [ROW]})
    assert_refused(late, 504, "timeout", None, "0.2 s")
    assert_refused(calls.post(EXPLAIN, {"node": "member-001"}), 504, "timeout")
    quick = calls.post(PREDICT, {"nodes": ["member-001"]})
    assert quick.status_code == 200  # looked up by another thread
    gate.set()
    assert calls.service.passes.taken == 0


def test_messages_do_not_quote_much(small):
    answer = small.post(PREDICT, {"nodes": ["x" * 900 + "\x07"]})
    message = answer.json()["error"]["message"]
    assert len(message) < 200
    assert re.search(r"x{5}…x*", message)
