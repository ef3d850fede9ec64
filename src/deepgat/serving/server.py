"""The process: its socket, its signals, its end."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from deepgat.errors import UserError
from deepgat.serving.access import Access
from deepgat.serving.app import create_app
from deepgat.serving.limits import Limits
from deepgat.serving.middleware import log_lines
from deepgat.serving.served import Served
from deepgat.serving.service import Service

CONNECTIONS = 1000
"""Connections at a time; another one is turned away."""
IDLE_SECONDS = 30
"""After so long without a request a connection is closed."""


class Server(uvicorn.Server):
    """uvicorn's server; a signal to stop ends the process with status 0.

    The first signal stops it gracefully, a second one at once.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal again at the end, which kills the process by it
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {each: signal.signal(each, self._told_to_stop) for each in signals}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _told_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._on_stop()
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; port 0 is any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise UserError(
            f"host is {host!r} and port {port}: expected an address of this machine, such as "
            "127.0.0.1, and a port up to 65535"
        ) from error
    try:
        if os.name == "posix":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(CONNECTIONS)  # from now on clients wait, rather than be refused
    except OSError as error:
        found.close()
        raise UserError(
            f"port {port} of {host} cannot be used ({error.strerror}): choose another with --port, "
            "or stop the program that has it"
        ) from error
    return found


def serve(
    folder: Path,
    host: str,
    port: int,
    token: str | None,
    limits: Limits,
    json_log: bool = False,
    on_start: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the model in a folder until the process is told to stop.

    ``on_start`` is called with the service's address when it can be reached.
    """
    log = log_lines(json_log)
    service = Service(lambda on_pass: Served.load(folder, on_pass), limits)

    def give_up() -> None:
        server.should_exit = True

    app = create_app(service, Access(token), log, give_up)
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=int(limits.timeout) + 1,
    )
    server = Server(config, service.stop)
    with bind(host, port) as listening:
        name, number = listening.getsockname()[:2]
        on_start(f"http://{f'[{name}]' if ':' in name else name}:{number}")
        server.run(sockets=[listening])
    if service.failure is not None:
        raise service.failure
    log({"event": "stopped"})
    if server.force_exit or service.busy():
        sys.stderr.flush()
        # a run of the network cannot be interrupted, and Python would wait for its end
        os._exit(1 if server.force_exit else 0)
