"""Access control: the token, and the host name that a request is addressed to."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from deepgat.data.tables.opening import read_whole
from deepgat.errors import UserError
from deepgat.serving.problems import Problem

TOKEN = "DEEPGAT_TOKEN"
"""The environment variable of the token."""
SHORTEST = 16
PUBLIC_PATHS = frozenset(("/health", "/ready"))
"""Paths that need no token, because they reveal nothing about the model."""


class Access:
    """Lets a request through, or raises a :class:`Problem`.

    With a token, every request must carry it: as a bearer token or, for browsers, as the password
    of basic authentication. Without a token, a request must be addressed to a loopback name.
    Otherwise a foreign web page could send requests from a browser on this machine, under its own
    host name that resolves to a loopback address (DNS rebinding).
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if path in PUBLIC_PATHS:
            return
        if self._token is None:
            self._check_host(headers.get(b"host", b""))
        elif not hmac.compare_digest(_given(headers.get(b"authorization", b"")), self._token):
            raise Problem(
                401,
                "unauthorized",
                "the token is missing or wrong: send the header Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": 'Bearer realm="deepgat", Basic realm="deepgat"'},
            )

    def _check_host(self, given: bytes) -> None:
        name = re.sub(r":\d*$", "", given.decode("latin-1")).strip("[]").lower()
        if not is_loopback(name):
            raise Problem(
                421,
                "wrong_host",
                "the request is addressed to another machine: call this service as localhost, or "
                "start it with a token",
            )


def _given(header: bytes) -> bytes:
    """The token in an Authorization header; empty if there is none."""
    kind, _, value = header.partition(b" ")
    if kind.lower() == b"bearer":
        return value.strip()
    if kind.lower() == b"basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own, without asking anybody."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def binds_to_loopback(host: str) -> bool:
    """Whether a service on this host can be reached from this machine alone."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"host is {host!r}, which has no address: expected one of this machine's, such as "
            "127.0.0.1, or 0.0.0.0 for all of them"
        ) from error
    return all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in found)


def read_token(file: Path | None, host: str) -> str | None:
    """The token in the file or, without one, in the environment.

    A service that other machines can reach needs one.
    """
    text = os.environ.get(TOKEN) if file is None else read_whole(file).decode("utf-8", "replace")
    if text is None:
        if binds_to_loopback(host):
            return None
        raise UserError(
            f"host is {host!r}, which other machines can reach: give a token with --token-file or "
            f"in the environment variable {TOKEN}, or leave --host out"
        )
    token = text.strip()
    where = f"the variable {TOKEN}" if file is None else str(file)
    if len(token) < SHORTEST or not re.fullmatch(r"[!-~]+", token):
        raise UserError(
            f"{where} holds no token: expected one line of at least {SHORTEST} ASCII characters "
            "without spaces, as openssl rand -hex 32 prints"
        )
    return token
