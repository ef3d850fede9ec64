"""The commands of the extra ``lab``: listed by name, imported when one of them is called."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

from deepgat.errors import UserError

COMMANDS = ("run", "reproduce", "report", "store", "bench")
NEEDED = ("matplotlib",)
"""What the extra installs."""


class WithLab(TyperGroup):
    """The library's commands, and the laboratory's behind them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            return typer.main.get_command(_refusal(cmd_name, missing[0]))
        return typer.main.get_command(import_module(f"deepgat.lab.commands.{cmd_name}").app)


def _refusal(command: str, missing: str) -> typer.Typer:
    """A command that says what to install, whatever it is given."""
    app = typer.Typer(add_completion=False)
    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

    @app.command(command, context_settings=settings)
    def refuse() -> None:
        """Needs the extra lab: pip install 'deepgat\\[lab]'."""
        raise UserError(
            f"deepgat {command} needs {missing}, which is not installed: "
            "run pip install 'deepgat[lab]'"
        )

    return app
