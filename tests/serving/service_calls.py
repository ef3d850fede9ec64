"""A client of the service in the same process."""

import asyncio
import threading
from typing import Any

import httpx

from deepgat.serving.access import Access
from deepgat.serving.app import create_app
from deepgat.serving.limits import Limits
from deepgat.serving.served import Served
from deepgat.serving.service import Service


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
