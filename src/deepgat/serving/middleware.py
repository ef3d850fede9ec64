"""What happens to every request before and after it is answered."""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepgat.serving.access import Access
from deepgat.serving.metrics import Metrics
from deepgat.serving.problems import Problem

REQUEST_ID = "deepgat.request_id"
"""Where the scope of a request has its id."""
GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
FRAMES = 12
"""Of a failure's traceback, the last so many are logged."""

Log = Callable[[dict[str, Any]], None]


def log_lines(as_json: bool) -> Log:
    """Writes a line per event to standard error: JSON, or plain."""

    def write(event: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if as_json:
            line = json.dumps({"time": now, **event})
        else:
            line = " ".join([now, *(f"{key}={value}" for key, value in event.items())])
        print(line, file=sys.stderr, flush=True)

    return write


class Middleware:
    """Gives a request its id, checks the token, logs and counts the answer.

    A log line has the route and the status, never the path, the query or a body: those may hold
    what users asked about. An unexpected exception is logged without its message, for the same
    reason.
    """

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics, log: Log) -> None:
        self._app, self._access, self._metrics, self._log = app, access, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        name = given if GOOD_ID.fullmatch(given) else secrets.token_hex(8).encode()
        scope[REQUEST_ID] = name.decode()
        status, sent, complete, start = 0, 0, False, time.perf_counter()

        async def send_on(message: Message) -> None:
            nonlocal status, sent, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", name), *SAFE]
                message = {**message, "headers": [*message["headers"], *extra]}
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            await send(message)

        self._metrics.in_flight.inc()
        try:
            self._access.check(scope["path"], headers)
            await self._app(scope, receive, send_on)
        except Problem as problem:
            await problem.response()(scope, receive, send_on)
        except Exception as error:
            self._log_failure(name, error)
            if not complete:  # a client must not take half an answer for a whole one
                raise
        finally:
            self._metrics.in_flight.dec()
            self._record(scope, name, status, sent, time.perf_counter() - start)

    def _record(self, scope: Scope, name: bytes, status: int, sent: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        self._log(
            {
                "event": "request",
                "id": name.decode(),
                "method": scope["method"] if scope["method"] in METHODS else "other",
                "route": route,
                "status": status,
                "ms": round(1000 * seconds, 2),
                "bytes": sent,
            }
        )

    def _log_failure(self, name: bytes, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        self._log(
            {"event": "failure", "id": name.decode(), "type": type(error).__name__, "at": where}
        )
