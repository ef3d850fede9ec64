"""The commands: typed functions, each a thin face on the library.

A command is imported when it is called: ``deepgat --help`` loads neither torch nor the laboratory.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import warnings
from importlib import import_module
from importlib.metadata import version as installed
from importlib.util import find_spec
from inspect import cleandoc
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape
from typer.core import TyperGroup

from deepgat import __version__
from deepgat.cli.show import ERR, as_options, note
from deepgat.errors import VERDICT, UserError, printable

COMMANDS = {
    "train": "Train a model on a dataset and report micro-F1 per seed, and their mean.",
    "evaluate": "Score a saved model, or all seeds of one, on the data it was trained for.",
    "tune": "Search good settings with Optuna, judged by validation nodes alone.",
    "crossval": "Classify whole graphs: accuracy by cross validation.",
    "predict": "Predict the class of every node, of this graph or another, or of new nodes.",
    "export": "Write a model as a program that runs without deepgat: PyTorch, ONNX, AOTInductor.",
    "serve": "Serve a model over HTTP: predictions, new nodes, explanations, and its page.",
    "inspect": "One node: the class that every layer gives it, and whom it listens to.",
    "view": "Write a page that shows a model: its nodes, layers and attention, in one HTML file.",
    "datasets": "List the datasets, and which of them are available.",
    "check": "Look at a graph before training on it: what is in it, and what looks wrong.",
    "models": "List the models: their equations, their papers, and the settings shipped for them.",
    "demo": "Watch GAT collapse with depth while DeepGAT does not.",
    "partition": "Divide a graph among processes, each of which then reads its own part alone.",
}
LAB = {
    "run": "Make the runs that files describe, unless the store has them.",
    "reproduce": "Reproduce a table or figure of the paper, beside the published numbers.",
    "report": "Turn finished runs into one HTML page that works offline, tables, and figures.",
    "store": "Look at finished runs, and move them between machines.",
    "bench": "Measure speed and memory against PyTorch Geometric and plain PyTorch.",
}
"""The commands of the extra ``lab``."""


class Commands(TyperGroup):
    """Commands of which the help knows the name and one line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)), rest


def load_command(name: str) -> Any:
    """The command itself."""
    if name in LAB and find_spec("matplotlib") is None:
        raise UserError(
            f"deepgat {name} needs matplotlib, which is not installed: "
            "run pip install 'deepgat[lab]'"
        )
    room = "lab.commands" if name in LAB else "cli"
    found = getattr(import_module(f"deepgat.{room}.{name}"), name)
    if not isinstance(found, typer.Typer):  # else a group of commands
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(name, help=_unwrapped(found.__doc__))(found)
        found = alone
    return typer.main.get_command(found)


def _unwrapped(text: str) -> str:
    """Paragraphs of one line each: the terminal wraps them, which is as wide as it is."""
    paragraphs = cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
for _name, _help in {**COMMANDS, **LAB}.items():
    app.command(_name, help=_help)(lambda: None)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepgat {__version__}, torch {installed('torch')}")
        raise typer.Exit


@app.callback()
def all_commands(
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
        try:
            app()
        finally:
            sys.stdout.flush()  # a full disk behind it is told below
    except UserError as error:
        _refuse(as_options(str(error), sys.argv))
    except KeyboardInterrupt:
        ERR.print("interrupted")
        sys.exit(130)
    except (RuntimeError, MemoryError) as error:
        _explain(error)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        _refuse("figures need matplotlib, which is not installed: pip install 'deepgat[figures]'")
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        _drop_output()
        sys.exit(1)
    except OSError as error:
        _explain_disk(error)


def _explain(error: RuntimeError | MemoryError) -> NoReturn:
    """A lost team or a full memory in a sentence; anything else keeps its traceback."""
    from deepgat.distributed import LostTeamError
    from deepgat.training.device import lacks_memory, out_of_memory

    if isinstance(error, LostTeamError):
        note(str(error))
        os._exit(1)  # without waiting for those who will not answer
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        _refuse("the memory is full: choose smaller settings, or train in batches")
    if not lacks_memory(error):
        raise error
    _refuse(out_of_memory(error))


def _explain_disk(error: OSError) -> NoReturn:
    """What the system said of a file, or that a disk is full, in a sentence."""
    why = error.strerror or str(error)
    if error.filename is not None:
        _refuse(f"{os.fsdecode(error.filename)} cannot be used ({why}): choose another path")
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        raise error
    # Writers name their files (deepgat.files), so it is standard output, or a temporary file.
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    _refuse(
        f"the output cannot be written ({why}): make room where it goes and in "
        f"{tempfile.gettempdir()}, or send it elsewhere"
    )


def _drop_output() -> None:
    """What is left of the output goes nowhere, or Python would try to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(sentence: str) -> NoReturn:
    in_team = VERDICT in os.environ
    if in_team:
        from deepgat.distributed.launch import give_up  # here: it loads torch
    if not in_team or give_up(2):
        ERR.print(f"[bold red]error:[/] {escape(printable(sentence))}", soft_wrap=True)
    sys.exit(0 if in_team else 2)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a sentence, without the line of code it came from."""
    note(" ".join(str(message).split()))
