"""Errors as a client sees them: a status, a code for programs, a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from deepgat.errors import cut_middle, printable

QUOTED = 60
"""Characters of a client's own text in a sentence."""


class Problem(Exception):  # noqa: N818 - what is wrong
    """An answer other than success.

    Args:
        status: of HTTP.
        code: one word that stays the same between versions.
        message: one sentence.
        field: the part of the body that is wrong, such as ``nodes[3]``.
        headers: to send along.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.field = status, code, message, field
        self.headers = dict(headers or {})

    def response(self) -> Response:
        error = {"code": self.code, "message": self.message, "field": self.field}
        return JSONResponse({"error": error}, self.status, self.headers)


def invalid(message: str, field: str | None = None, code: str = "invalid") -> Problem:
    """The body is valid JSON, but not a valid request."""
    return Problem(422, code, message, field)


def too_many(field: str, count: int, most: int) -> Problem:
    message = f"{field} has {count} items: one request may have {most}, so send several requests"
    return Problem(413, "too_many", message, field)


def unknown_node(text: str, field: str) -> Problem:
    return invalid(f"{field}: the graph has no node {quoted(text)}", field, "unknown_node")


def busy() -> Problem:
    message = "the service has as many requests as it takes at a time: try again in a second"
    return Problem(503, "busy", message, headers={"Retry-After": "1"})


def not_ready(stopping: bool = False) -> Problem:
    message = "the service is stopping" if stopping else "the model is still being loaded"
    code = "stopping" if stopping else "not_ready"
    return Problem(
        503, code, f"{message}: try again in a few seconds", headers={"Retry-After": "5"}
    )


def too_slow(seconds: float) -> Problem:
    message = f"the answer took more than {seconds:g} s: ask for fewer nodes, or try again later"
    return Problem(504, "timeout", message)


def failure(request_id: str) -> Problem:
    message = f"the service failed: its log has the reason under the request id {request_id}"
    return Problem(500, "internal", message)


def quoted(text: str) -> str:
    """A client's text, short and without control characters."""
    return repr(printable(cut_middle(text, QUOTED)))
