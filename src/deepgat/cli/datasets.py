"""``deepgat datasets``."""

from __future__ import annotations

from deepgat.cli import options as opt
from deepgat.cli.show import OUT, echo_json, print_table
from deepgat.data import list_datasets


def datasets(json: opt.Json = False) -> None:
    """List the datasets, and which of them are available.

    A dataset is available when it is built in, in the cache, or under the folder that the
    environment variable DEEPGAT_DATA names; the others are downloaded when first used.
    """
    listings = list_datasets()
    if json:
        for entry in listings:
            echo_json({**vars(entry), "path": None if entry.path is None else str(entry.path)})
        return
    columns = ["name", "nodes", "edges", "features", "classes", "split", "at hand", "what it is"]
    rows = []
    for entry in listings:
        numbers = (entry.nodes, entry.edges, entry.features, entry.classes)
        rows.append(
            [
                entry.key,
                *("–" if number is None else f"{number:,}" for number in numbers),
                entry.default_split,
                entry.source or "no",
                f"{entry.title}: {entry.note}",
            ]
        )
    room = OUT.width >= 120 or not OUT.is_terminal  # notes where there is room
    shown = len(columns) if room else len(columns) - 1
    print_table("Datasets", columns[:shown], [row[:shown] for row in rows])
