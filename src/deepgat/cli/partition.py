"""``deepgat partition``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepgat.cli import options as opt
from deepgat.cli.parsing import load_data, parse_reading, tell_notes
from deepgat.cli.show import OUT, print_table, progress_bar
from deepgat.data import ReadOptions, is_path
from deepgat.data.tables import can_stream
from deepgat.distributed import METHODS
from deepgat.distributed.partition import chosen_method
from deepgat.distributed.partition_folder import PARTITION_FOLDER, write_partition
from deepgat.distributed.streaming import write_streamed
from deepgat.errors import UserError
from deepgat.files import check_can_write


def partition(
    dataset: opt.Dataset,
    parts: Annotated[int, typer.Option(help="How many processes will train on it.")],
    out: Annotated[Path, typer.Option(help="The new folder.", metavar="DIR")],
    split: Annotated[
        str | None, typer.Option(help="As in deepgat train: it is written with the parts.")
    ] = None,
    read: opt.Read = None,
    method: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(METHODS)}: metis cuts the fewest edges, stream needs the least "
            "memory; auto is METIS where it is installed, else stream."
        ),
    ] = "auto",
) -> None:
    """Divide a graph among processes, each of which then reads its own part alone.

    A folder of tables or an .npz file is never in memory as a whole; METIS and the ordering
    need its neighbour lists, 4 bytes per edge and direction, --method stream does not.

    Example: deepgat partition cs --parts 4 --out cs-4

    Then: deepgat train cs-4 --processes 4
    """
    if parts < 1:
        raise UserError(f"--parts is {parts}: expected 1 or more")
    check_can_write(out, PARTITION_FOLDER)
    chosen_method(method, 0, parts)  # refused now rather than after the reading
    options = ReadOptions.of(parse_reading(read))
    own = is_path(dataset) and can_stream(Path(dataset), options)
    with progress_bar() as told:
        if own:
            data, sizes = write_streamed(out, Path(dataset), options, split, parts, method, told)
        else:
            data = load_data(dataset, split, read, tell=False)
            sizes = write_partition(out, data, parts, method, told)
    tell_notes(data)
    rows = [
        [str(number), f"{size.nodes:,}", f"{size.halo:,}", f"{size.edges:,}"]
        for number, size in enumerate(sizes)
    ]
    by = {"metis": "METIS"}.get(used := chosen_method(method, len(data.graphs[0].y), parts), used)
    title = f"{data.title}, split {data.split}, in {parts} parts by {by}"
    print_table(title, ["part", "nodes", "halo", "edges in"], rows)
    OUT.print(f"written to {out}", soft_wrap=True)
