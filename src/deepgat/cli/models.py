"""``deepgat models``."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

import typer

from deepgat.cli import options as opt
from deepgat.cli.show import echo_json, print_table
from deepgat.models import SYSTEMS, System, find_system
from deepgat.training.config_file import read_config, shipped


def models(
    name: Annotated[
        str | None, typer.Argument(help="One model: list its settings.", show_default=False)
    ] = None,
    json: opt.Json = False,
) -> None:
    """List the models: their equations, their papers, and the settings shipped for them.

    Each shipped setting is run by its name: deepgat train --config gcnii-cora.

    Example: deepgat models gcnii
    """
    configs = {key: read_config(path) for key, path in shipped().items()}
    rows = []
    for system in SYSTEMS.values() if name is None else [find_system(name)]:
        own = {key: file.about for key, file in configs.items() if file.system == system.name}
        if json:
            echo_json(_described(system, own))
        config = f"--config {', '.join(own)}" if own else ""
        lines = (system.equation, system.paper, system.note, config)
        rows.append([system.name, "\n".join(line for line in lines if line)])
    if json:
        return
    what = "what it computes, its paper, settings to run it with"
    print_table("Models", ["name", what], rows, show_lines=True)
    if name is not None:
        _print_settings(find_system(name))


def _described(system: System, shipped: dict[str, str]) -> dict[str, object]:
    return {
        "name": system.name,
        "equation": system.equation,
        "paper": system.paper,
        "note": system.note,
        "settings": system.config.to_dict(),
        "presets": {name: dict(values) for name, values in system.presets.items()},
        "training": dict(system.training),
        "shipped": shipped,
    }


def _print_settings(system: System) -> None:
    """A row per setting of a model: its default, and what it means."""
    rows = []
    for field in fields(system.config):
        value, options = getattr(system.config, field.name), field.metadata["options"]
        words = {True: "yes", False: "no", None: "–"}
        shown = words[value] if value is None or isinstance(value, bool) else str(value)
        choices = f" ({', '.join(options)})" if options else ""
        rows.append([field.name, shown, field.metadata["meaning"] + choices])
    title = f"Settings of {system.name}, for --set NAME=VALUE"
    print_table(title, ["name", "default", "meaning"], rows)
