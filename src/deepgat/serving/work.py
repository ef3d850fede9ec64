"""Threads that compute while the event loop goes on, and requests that share one computation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from deepgat.serving.problems import busy, not_ready

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Result = TypeVar("Result")

AT_ONCE = 64
"""The most questions that one computation answers."""


class Pool:
    """Threads with a bounded number of requests in them or before them.

    Args:
        name: of the threads.
        threads: how many.
        places: how many requests at a time; another one is told to come back.
        cores: how many cores torch may use in each of the threads.
    """

    def __init__(self, name: str, threads: int, places: int, cores: int = 1) -> None:
        # torch has a number of threads for each thread that calls it
        self._executor = ThreadPoolExecutor(threads, name, torch.set_num_threads, (cores,))
        self._threads, self._places = threads, places
        self._lock = threading.Lock()
        self.taken = self.running = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one request; it is taken before the body is read, so bodies are bounded."""
        if self.taken >= self._places + self._threads:
            raise busy()
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def run(self, work: Callable[[], Result]) -> Result:
        """Compute in one of the threads.

        A caller that is cancelled takes its work along, unless a thread has begun with it.
        """

        def counted() -> Result:
            with self._lock:
                self.running += 1
            try:
                return work()
            finally:
                with self._lock:
                    self.running -= 1

        return await asyncio.wrap_future(self._executor.submit(counted))

    def close(self) -> None:
        """Take no more work; what a thread has begun goes on."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Batcher(Generic[Question, Answer]):
    """Answers all waiting questions with one call in a pool.

    Args:
        pool: in which it is called.
        answer: questions → an answer, or an exception, for each.
    """

    def __init__(
        self,
        pool: Pool,
        answer: Callable[[Sequence[Question]], Sequence[Answer | Exception]],
    ) -> None:
        self._pool, self._answer = pool, answer
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._lock = threading.Lock()  # between the event loop and the pool's threads
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question) -> Answer:
        mine: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append((question, mine))
            first = len(self._waiting) == 1
        if first:
            self._start()
        return await mine

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._call())
        self._tasks.add(task)  # the loop itself keeps weak references only
        task.add_done_callback(self._tasks.discard)

    async def _call(self) -> None:
        taken: list[tuple[Question, asyncio.Future[Answer]]] = []

        def work() -> Sequence[Answer | Exception]:
            # Only now, so that questions which came while the threads were busy are in it too.
            with self._lock:
                asked = self._waiting[:AT_ONCE]
                del self._waiting[:AT_ONCE]
            taken.extend(each for each in asked if not each[1].done())  # others were given up
            return self._answer([question for question, _ in taken]) if taken else ()

        try:
            answers = await self._pool.run(work)
        except (Exception, asyncio.CancelledError) as error:
            if not taken:  # the pool is closed
                with self._lock:
                    taken, self._waiting = self._waiting, []
            told = error if isinstance(error, Exception) else not_ready(stopping=True)
            answers = [told] * len(taken)
        for (_, future), answer in zip(taken, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        if self._waiting:
            self._start()
