"""``deepgat partition``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepgat.cli.own import load_data
from deepgat.cli.show import ERR, OUT, plain_table
from deepgat.disk import check_can_write
from deepgat.distributed import METHODS, has_metis
from deepgat.distributed.files import PARTITION_FOLDER, write_partition
from deepgat.errors import UserError


def partition(
    dataset: Annotated[
        str,
        typer.Argument(help="A name of deepgat datasets (cora, cs, …), or a graph of your own."),
    ],
    parts: Annotated[int, typer.Option(help="How many processes will train on it.")],
    out: Annotated[Path, typer.Option(help="The new folder.", metavar="DIR")],
    split: Annotated[
        str | None, typer.Option(help="As in deepgat train: it is written with the parts.")
    ] = None,
    read: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="How to read a graph of your own, e.g. --read missing=mean; repeatable.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"{', '.join(METHODS)}; auto is METIS where it is installed.")
    ] = "auto",
) -> None:
    """Divide a graph among processes, each of which then reads its own part alone.

    Example: deepgat partition cs --parts 4 --out cs-4

    Then: deepgat train cs-4 --processes 4
    """
    if parts < 1:
        raise UserError(f"--parts is {parts}: expected 1 or more")
    check_can_write(out, PARTITION_FOLDER)
    data = load_data(dataset, split, read)

    def tell(number: int) -> None:
        if ERR.is_terminal:
            ERR.print(f"part {number + 1} of {parts} written")

    sizes = write_partition(out, data, parts, method, tell)
    rows = [
        [str(number), f"{size.nodes:,}", f"{size.halo:,}", f"{size.edges:,}"]
        for number, size in enumerate(sizes)
    ]
    by = "METIS" if method == "metis" or (method == "auto" and has_metis()) else "ordering"
    title = f"{data.title}, split {data.split}, in {parts} parts by {by}"
    OUT.print(plain_table(title, ["part", "nodes", "halo", "edges in"], rows))
    OUT.print(f"written to {out}", soft_wrap=True)
