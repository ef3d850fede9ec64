"""Reads the table of nodes."""

from __future__ import annotations

from pathlib import Path

from deepgat.data.tables.columns import Source, Table, Tell, is_text, require_column
from deepgat.data.tables.options import ReadOptions, listed
from deepgat.data.tables.text import quoted
from deepgat.data.tables.vocabulary import Vocabulary
from deepgat.errors import UserError


def read_nodes(
    source: Source, options: ReadOptions, path: Path | None = None, tell: Tell | None = None
) -> tuple[Vocabulary, Table]:
    """The ids, and all other columns; they are kept at ``path``, or in memory.

    A column is numbers if all its cells are. With a plan, columns keep the kind that they had in
    training.
    """
    require_column(source, options.id, "id")
    planned = () if options.plan is None else options.plan.columns
    numbers = {item.name.lower() for item in planned if item.kind == "number"}
    texts = {item.name.lower() for item in planned if item.kind in ("category", "words")}
    texts |= {name.lower() for name in (options.id, options.label, options.part)}
    turned = {""}
    while turned:
        ids, table = Vocabulary(), Table(source.name, path)
        turned = _read(source, options, numbers, texts, ids, table, tell)
        texts |= turned
    if not len(ids):
        raise UserError(f"{source.name} has no nodes: expected at least one")
    row = ids.first_repeated()
    if row is not None:
        raise UserError(
            f"{table.at(row, options.id)}: the id {quoted(ids[row])} is there a second time; give "
            "every node its own id"
        )
    return ids, table


def _read(
    source: Source,
    options: ReadOptions,
    numbers: set[str],
    texts: set[str],
    ids: Vocabulary,
    table: Table,
    tell: Tell | None,
) -> set[str]:
    """Fill ``ids`` and ``table``; or stop, and return the columns that turned out to be texts."""
    import pyarrow as pa

    skip = {name.lower() for name in listed(options.drop)} - {options.id.lower()}
    for rows in source.rows(texts, skip, tell):
        ids.append(rows.check_ids(options.id))
        columns = {k: v for k, v in rows.columns.items() if k.lower() != options.id.lower()}
        for name in columns:
            if name.lower() in numbers:
                columns[name] = pa.array(rows.numbers(name))
        turned = {k.lower() for k, v in columns.items() if is_text(v) and k.lower() not in texts}
        if turned:
            return turned
        table.add(rows._replace(columns=columns))
    return set()
