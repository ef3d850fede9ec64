"""The state of a running service, and how it answers."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from starlette.requests import Request

from deepgat.errors import UserError
from deepgat.serving.bodies import Body, ExplainRequest, parse, to_bytes
from deepgat.serving.limits import Limits
from deepgat.serving.metrics import Metrics
from deepgat.serving.problems import Problem, not_ready, too_slow
from deepgat.serving.reading import read_body
from deepgat.serving.served import Answer, Served
from deepgat.serving.work import Batcher, Pool

Asked = TypeVar("Asked", bound=Body)
Load = Callable[[Callable[[str], None]], Served]
"""Loads the model; the argument is to be called at every run of the network."""

Question = tuple[Served, ExplainRequest]


class Page(NamedTuple):
    plain: bytes
    gzipped: bytes


class Service:
    """A model that is being loaded, answers, or stops.

    ``lookups`` are answers from what is known already, ``passes`` runs of the network: a slow run
    does not hold up the others.
    """

    def __init__(self, load: Load, limits: Limits) -> None:
        self.limits, self.metrics = limits, Metrics()
        self.served: Served | None = None
        self.failure: Exception | None = None
        self.stopping = False
        cores = torch.get_num_threads()
        self.lookups = Pool("lookup", 1, limits.waiting)
        self.passes = Pool("pass", limits.threads, limits.waiting, max(1, cores // limits.threads))
        self._loading = Pool("load", 1, 1, cores)
        self._load = load
        self.metrics.ready.set_function(lambda: float(self._is_ready))
        self._explain = Batcher[Question, bytes](self.passes, self._explanations)
        self._page: asyncio.Task[Page] | None = None

    async def start(self, on_failure: Callable[[], None]) -> None:
        """Load the model; meanwhile the service is alive but not ready."""
        try:
            self.served = await self._loading.run(lambda: self._load(self._count_pass))
        except Exception as error:
            self.failure = error
            on_failure()

    def stop(self) -> None:
        """Answer what has begun and nothing else.

        A signal's handler calls this, so it takes no lock: whoever was interrupted may hold it.
        """
        self.stopping = True

    def close(self) -> None:
        for pool in (self.lookups, self.passes, self._loading):
            pool.close()

    def busy(self) -> bool:
        """Whether a thread is computing."""
        return any(pool.running for pool in (self.lookups, self.passes, self._loading))

    @property
    def _is_ready(self) -> bool:
        return self.served is not None and not self.stopping

    def ready(self) -> Served:
        if self.served is None or self.stopping:
            raise not_ready(self.stopping)
        return self.served

    async def answer(
        self,
        request: Request,
        kind: type[Asked],
        pool: Pool,
        work: Callable[[Served, Asked], Answer],
    ) -> bytes:
        """The answer to a request with a body, computed in a pool."""
        served = self.ready()
        with pool.place():
            body = await read_body(request, self.limits)

            def run() -> bytes:
                found = work(served, parse(body, kind, self.limits))
                self.metrics.nodes.inc(len(found["predictions"]))
                return to_bytes(found)

            return await self._in_time(pool.run(run))

    async def explain(self, request: Request) -> bytes:
        """The answer to a question that shares a run of the network with others that wait."""
        served = self.ready()
        with self.passes.place():
            body = await read_body(request, self.limits)
            asked = await self.lookups.run(lambda: parse(body, ExplainRequest, self.limits))
            return await self._in_time(self._explain.ask((served, asked)))

    async def page(self) -> Page:
        """The model's page, made when it is first asked for."""
        served = self.ready()
        if self._page is None or (self._page.done() and self._page.exception() is not None):
            self._page = asyncio.create_task(self._loading.run(lambda: _page(served)))
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await asyncio.shield(self._page)
        except TimeoutError:
            message = "the page is being made: load it again in a few seconds"
            again = {"Retry-After": "5", "Refresh": "5"}  # browsers do so by themselves
            raise Problem(503, "not_ready", message, headers=again) from None
        except UserError as error:
            raise Problem(409, "not_supported", str(error)) from error

    async def _in_time(self, answer: Awaitable[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await answer
        except TimeoutError:
            raise too_slow(self.limits.timeout) from None

    def _explanations(self, questions: Sequence[Question]) -> list[bytes | Exception]:
        answers = questions[0][0].explain_all([asked for _, asked in questions])
        self.metrics.nodes.inc(len(answers))
        return [each if isinstance(each, Exception) else to_bytes(each) for each in answers]

    def _count_pass(self, route: str) -> None:
        self.metrics.passes.labels(route).inc()


def _page(served: Served) -> Page:
    plain = served.page().encode()
    return Page(plain, gzip.compress(plain))
