"""``deepgat datasets``."""

from __future__ import annotations

from typing import Annotated

import typer

from deepgat.cli.show import OUT, dataset_table
from deepgat.data import list_datasets
from deepgat.model_folder import to_json


def datasets(
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per dataset.")
    ] = False,
) -> None:
    """List the datasets, and which of them are available.

    A dataset is available when it is built in, in the cache, or under the folder that the
    environment variable DEEPGAT_DATA names; the others are downloaded when first used.
    """
    listings = list_datasets()
    if not json:
        OUT.print(dataset_table(listings, wide=OUT.width >= 120))
        return
    for entry in listings:
        plain = {**vars(entry), "path": None if entry.path is None else str(entry.path)}
        typer.echo(to_json(plain), nl=False)
