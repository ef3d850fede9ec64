"""``deepgat serve``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from deepgat.cli import options as opt
from deepgat.cli.show import ERR
from deepgat.errors import UserError
from deepgat.training.memory import read_memory

NEEDED = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}


def serve(
    folder: opt.ModelFolder,
    host: Annotated[
        str, typer.Option(help="The address to listen at; 0.0.0.0: all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any free port.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the token that every request must carry; or the variable "
            "DEEPGAT_TOKEN. Needed where other machines can reach the service."
        ),
    ] = None,
    max_body: Annotated[
        str, typer.Option(metavar="SIZE", help="The largest body of a request.")
    ] = "2M",
    max_nodes: Annotated[
        int, typer.Option(help="The most nodes in a request; 20 times as many edges.")
    ] = 1000,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="The longest time for an answer.")
    ] = 30.0,
    threads: Annotated[
        int, typer.Option(help="Runs of the network at a time; each has its share of the cores.")
    ] = 1,
    json_log: Annotated[bool, typer.Option("--json-log", help="Log lines as JSON.")] = False,
) -> None:
    """Serve a model over HTTP: predictions, new nodes, explanations, and its page.

    Only this machine can reach it, unless --host says otherwise. Stops on Ctrl-C or SIGTERM, after
    it has answered what it has begun.

    Example: deepgat serve model/ --port 8000, then open http://127.0.0.1:8000/docs
    """
    for module, package in NEEDED.items():
        if find_spec(module) is None:
            raise UserError(
                f"deepgat serve needs {package}, which is not installed: "
                "pip install 'deepgat[serve]'"
            )
    from deepgat.serving.access import read_token  # here: they load fastapi
    from deepgat.serving.limits import Limits
    from deepgat.serving.server import serve as run

    limits = Limits(
        max_body=_size(max_body),
        max_nodes=max_nodes,
        timeout=timeout,
        threads=threads,
    )
    token = read_token(token_file, host)

    def told(address: str) -> None:
        locked = "" if token is None else ", with a token"
        text = f"Serving {folder} on {address}{locked}; stop with Ctrl-C"
        ERR.print(text, markup=False, soft_wrap=True)

    run(folder, host, port, token, limits, json_log, told)


def _size(text: str) -> int:
    try:
        return int(read_memory(text) or 0)
    except UserError as error:
        raise UserError(f"--max-body {text}: expected a size such as 500K or 2M") from error
