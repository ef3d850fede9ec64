"""``deepgat serve`` as a process: it starts, answers, stops, and is killed without loss."""

import hashlib
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from test_cli import assert_sentence, run  # noqa: F401 - a fixture

SERVE = importlib.import_module("deepgat.cli.serve")
ASKED = {"nodes": ["member-001", "member-007"]}


class Running:
    """A service on a free port, and what it has written to standard error."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        command = [sys.executable, "-m", "deepgat", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"COLUMNS": "200"} | environment,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = ""

    def wait_for_address(self) -> None:
        self.address = self._find(r"on (http://\S+?)[;,]")

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def _find(self, pattern: str) -> str:
        found = None
        for _ in range(6000):
            found = next(filter(None, (re.search(pattern, line) for line in list(self.lines))), 0)
            if found or self.process.poll() is not None:
                break
            time.sleep(0.05)
        assert found, self.lines
        return found[1]

    def wait_until_ready(self) -> None:
        for _ in range(6000):
            if self.get("/ready").status_code == 200:
                return
            time.sleep(0.05)
        raise AssertionError(self.lines)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.address + path, timeout=60)

    def ask(self) -> dict:
        answer = httpx.post(self.address + "/v1/predict", json=ASKED, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@pytest.fixture
def start():
    begun = []

    def make(*arguments, **environment):
        begun.append(Running(*arguments, **environment))
        begun[-1].wait_for_address()
        return begun[-1]

    yield make
    for each in begun:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait(30)


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_a_kill_loses_nothing(start, club):
    before = digest(club / "model")
    first = start(club / "model")
    first.wait_until_ready()
    answer = first.ask()
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    assert digest(club / "model") == before
    second = start(club / "model")
    second.wait_until_ready()
    assert second.ask() == answer
    assert second.end(signal.SIGINT) == 0
    assert digest(club / "model") == before


@pytest.mark.slow
def test_it_starts_answers_and_ends_after_a_request_that_has_begun(start, club):
    service = start(club / "model", "--json-log")
    assert service.address.startswith("http://127.0.0.1:")
    assert service.get("/health").status_code == 200
    service.wait_until_ready()
    assert [each["node"] for each in service.ask()["predictions"]] == ASKED["nodes"]
    url = httpx.URL(service.address)
    body = b'{"nodes": ["member-001"]}'
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((url.host, url.port), 30) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10])
        time.sleep(0.5)
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert service.process.poll() is None
        with pytest.raises(httpx.ConnectError):
            service.get("/health")
        connection.sendall(body[10:])
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"node":"member-001"' in answer
    assert service.wait() == 0
    events = [json.loads(line)["event"] for line in service.lines[1:]]
    assert events.count("ready") == 1
    assert events[-1] == "stopped"
    assert service.process.stdout.read() == ""


@pytest.mark.slow
def test_other_machines_need_the_token(start, club, tmp_path):
    token = "0123456789abcdef0123"
    (tmp_path / "token").write_text(token + "\n")
    service = start(club / "model", "--host", "0.0.0.0", "--token-file", tmp_path / "token")
    url = httpx.URL(service.address).copy_with(host="127.0.0.1", path="/v1/predict")
    headers = {"Authorization": f"Bearer {token}"}
    for _ in range(6000):
        answer = httpx.post(url, json=ASKED, headers=headers)
        if answer.status_code != 503:
            break
        time.sleep(0.05)
    assert answer.status_code == 200
    assert httpx.post(url, json=ASKED).status_code == 401
    assert service.end(signal.SIGTERM) == 0
    assert not any(token in line for line in service.lines)


@pytest.mark.slow
def test_large_bodies_are_refused_on_a_real_connection(start, club):
    service = start(club / "model", "--max-body", "10K")
    service.wait_until_ready()
    whole = b'{"nodes":["' + b"x" * 30_000 + b'"]}'
    kind = {"Content-Type": "application/json"}
    url = service.address + "/v1/predict"

    def pieces():
        for begin in range(0, len(whole), 1000):
            yield whole[begin : begin + 1000]

    for content in (whole, pieces()):
        answer = httpx.post(url, content=content, headers=kind)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "too_large"
    assert service.end(signal.SIGTERM) == 0


def test_what_cannot_be_served_is_a_sentence(run, club, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.delenv("DEEPGAT_TOKEN", raising=False)
    model = club / "model"
    assert_sentence(run("serve", model, "--host", "0.0.0.0"), "--token-file", "DEEPGAT_TOKEN")
    (tmp_path / "short").write_text("secret\n")
    short = run("serve", model, "--token-file", tmp_path / "short")
    assert_sentence(short, "at least 16 ASCII characters")
    assert "secret" not in short.err
    assert_sentence(run("serve", model, "--token-file", tmp_path / "none"), "none")
    monkeypatch.setenv("DEEPGAT_TOKEN", "too short")
    assert_sentence(run("serve", model), "DEEPGAT_TOKEN holds no token")
    monkeypatch.delenv("DEEPGAT_TOKEN")
    assert_sentence(run("serve", model, "--host", "no.such.host.invalid"), "no.such.host.invalid")
    assert_sentence(run("serve", model, "--max-body", "much"), "--max-body much", "2M")
    assert_sentence(run("serve", model, "--max-nodes", 0), "--max-nodes is 0")
    assert_sentence(run("serve", model, "--timeout", 0), "timeout is 0.0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_sentence(run("serve", model, "--port", port), str(port), "--port")


def test_a_folder_without_a_model_ends_the_service(run, tmp_path):  # noqa: F811
    result = run("serve", tmp_path, "--port", 0)
    assert result.code == 2
    assert "is not a model folder" in result.err.splitlines()[-1]


def test_a_missing_extra_is_a_sentence(run, club, monkeypatch):  # noqa: F811
    monkeypatch.setattr(SERVE, "find_spec", lambda name: None)
    assert_sentence(run("serve", club / "model"), "needs fastapi", "pip install 'deepgat[serve]'")
