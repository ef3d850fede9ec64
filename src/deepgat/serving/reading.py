"""Reads a request's body within its limits."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from deepgat.serving.limits import Limits
from deepgat.serving.problems import Problem

DRAINED = 4
"""Of a body that is too large, so many times the limit are read and dropped: a client that is
still sending would otherwise lose the answer with the connection."""


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request; a :class:`Problem` where it is not JSON, too large or too slow."""
    check_headers(request)
    try:
        async with asyncio.timeout(limits.timeout):
            return await _read(request, limits.max_body)
    except TimeoutError:
        raise Problem(
            408,
            "body_timeout",
            f"the body did not arrive within {limits.timeout:g} s: send it faster",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise Problem(400, "incomplete", "the connection ended before the body did") from None


def check_headers(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415,
            "wrong_type",
            "the body has the wrong type: send JSON with the header Content-Type: application/json",
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "wrong_encoding", "the body is compressed: send it as it is")


async def _read(request: Request, most: int) -> bytes:
    announced = request.headers.get("content-length", "")
    too_large = announced.isdigit() and int(announced[:18]) > most
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        too_large = too_large or size > most
        if not too_large:
            chunks.append(chunk)
        elif size > DRAINED * most:
            break
    if too_large:
        raise Problem(
            413,
            "too_large",
            f"the body has more than {most} bytes: send fewer nodes in one request",
            headers={"Connection": "close"},
        )
    return b"".join(chunks)
