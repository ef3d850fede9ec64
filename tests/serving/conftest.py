"""A small served model, and a client of it in the same process."""

import asyncio
import runpy
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import deepgat
from deepgat.serving.access import Access
from deepgat.serving.app import create_app
from deepgat.serving.limits import Limits
from deepgat.serving.served import Served
from deepgat.serving.service import Service

EXAMPLE = Path(__file__).parents[2] / "examples" / "club.py"


class Calls:
    """Calls an application that runs in an event loop of its own thread."""

    def __init__(self, served: Served, limits: Limits | None = None, token: str | None = None):
        self.events: list[dict[str, Any]] = []
        self.service = Service(lambda on_pass: served, limits or Limits())
        served.on_pass = self.service._count_pass
        self.app = create_app(self.service, Access(token), self.events.append)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.wait_for(self.service.start(lambda: None))
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def wait_for(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.wait_for(self.client.request(method, path, **options))

    def post(self, path: str, body: Any) -> httpx.Response:
        return self("POST", path, json=body)

    def at_once(self, requests: list[tuple[str, Any]]) -> list[httpx.Response]:
        """Several requests that are all sent before the first is answered."""

        async def send() -> list[httpx.Response]:
            return await asyncio.gather(*(self.client.post(p, json=b) for p, b in requests))

        return self.wait_for(send())

    def close(self) -> None:
        self.service.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def club(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's graph, and a model of it that keeps the graph."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["club.py", str(folder / "graph")])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    model = deepgat.fit(
        str(folder / "graph"), "deepgat", num_layers=2, training={"epochs": 8, "device": "cpu"}
    )
    model.save(folder / "model", keep_graph=True)
    return folder


@pytest.fixture(scope="session")
def served(club: Path) -> Served:
    return Served.load(club / "model", lambda route: None)


@pytest.fixture
def make_calls(served: Served) -> Iterator[Any]:
    made: list[Calls] = []

    def make(**options: Any) -> Calls:
        made.append(Calls(served, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def calls(make_calls: Any) -> Calls:
    return make_calls()
