"""``deepgat models``."""

from __future__ import annotations

from typing import Annotated

import typer

from deepgat.cli.show import OUT, model_table
from deepgat.model_folder import to_json
from deepgat.nn import SYSTEMS
from deepgat.training.config_file import read_config, shipped


def models(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model.")] = False,
) -> None:
    """List the models: their equations, their papers, and the settings shipped for them.

    Each shipped setting is run by its name: deepgat train --config gcnii-cora.
    """
    configs = {name: read_config(path) for name, path in shipped().items()}
    rows = [
        (system, [name for name, config in configs.items() if config.system == system.name])
        for system in SYSTEMS
    ]
    if not json:
        OUT.print(model_table(rows))
        return
    for system, names in rows:
        abouts = {name: configs[name].about for name in names}
        typer.echo(to_json({**vars(system), "settings": abouts}), nl=False)
