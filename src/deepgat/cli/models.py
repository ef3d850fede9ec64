"""``deepgat models``."""

from __future__ import annotations

from typing import Annotated

import typer

from deepgat.cli.show import OUT, model_table, settings_table
from deepgat.model_folder import to_json
from deepgat.models import SYSTEMS, System, find_system
from deepgat.training.config_file import read_config, shipped


def models(
    name: Annotated[
        str | None, typer.Argument(help="One model: list its settings.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model.")] = False,
) -> None:
    """List the models: their equations, their papers, and the settings shipped for them.

    Each shipped setting is run by its name: deepgat train --config gcnii-cora.

    Example: deepgat models gcnii
    """
    configs = {key: read_config(path) for key, path in shipped().items()}
    systems = SYSTEMS.values() if name is None else [find_system(name)]
    rows = [
        (system, [key for key, config in configs.items() if config.system == system.name])
        for system in systems
    ]
    if json:
        for system, names in rows:
            typer.echo(
                to_json(_described(system, {key: configs[key].about for key in names})), nl=False
            )
        return
    OUT.print(model_table(rows))
    if name is not None:
        OUT.print(settings_table(find_system(name)))


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
