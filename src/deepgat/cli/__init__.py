"""The commands: typed functions, each a thin face on the library."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, NoReturn

import torch
import typer
from rich.markup import escape

from deepgat import __version__
from deepgat.cli.check import check
from deepgat.cli.crossval import crossval
from deepgat.cli.datasets import datasets
from deepgat.cli.demo import demo
from deepgat.cli.evaluate import evaluate
from deepgat.cli.inspect import inspect
from deepgat.cli.lab import WithLab
from deepgat.cli.models import models
from deepgat.cli.partition import partition
from deepgat.cli.predict import predict
from deepgat.cli.show import ERR
from deepgat.cli.train import train
from deepgat.cli.tune import tune
from deepgat.distributed import LostTeamError, launch
from deepgat.errors import UserError, printable
from deepgat.training.device import lacks_memory, out_of_memory

app = typer.Typer(
    cls=WithLab,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
app.command()(train)
app.command()(evaluate)
app.command()(tune)
app.command()(crossval)
app.command()(predict)
app.command()(inspect)
app.command()(datasets)
app.command()(check)
app.command()(models)
app.command()(demo)
app.command()(partition)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepgat {__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Deep graph attention networks: train, compare and understand them."""


def main() -> None:
    """Run a command. A mistake in the input is one sentence and exit code 2."""
    # Torch announces on first use that its sparse layouts are in beta; users cannot act on it.
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
    warnings.showwarning = _show_warning
    try:
        app()
    except UserError as error:
        _refuse(str(error))
    except LostTeamError as error:
        ERR.print(f"[yellow]note:[/] {escape(printable(str(error)))}", soft_wrap=True)
        os._exit(1)  # without waiting for those who will not answer
    except KeyboardInterrupt:
        ERR.print("interrupted")
        sys.exit(130)
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        _refuse(out_of_memory(error))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        _refuse("figures need matplotlib, which is not installed: pip install 'deepgat[figures]'")
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _refuse(sentence: str) -> NoReturn:
    if launch.give_up(2):
        ERR.print(f"[bold red]error:[/] {escape(printable(sentence))}", soft_wrap=True)
    sys.exit(0 if launch.VERDICT in os.environ else 2)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a sentence, without the line of code it came from."""
    ERR.print(f"[yellow]note:[/] {escape(str(message))}", soft_wrap=True)
