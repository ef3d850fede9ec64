"""Ids of a table in memory as node numbers, under the rules of a CSV file."""

from __future__ import annotations

import numpy as np

from deepgat.data.tables.columns import Column, Columns
from deepgat.data.tables.delimited import explain
from deepgat.data.tables.text import Found, Mistake, Names, is_utf8
from deepgat.errors import UserError


def ids_of(
    table: Columns, name: str, names: Names, *, new: bool = False, known: bool = False
) -> Column:
    """The ids in a column of a table in memory as numbers, under the rules of a CSV file."""
    column = table.find(name)
    assert column is not None
    column = column.as_texts()
    assert column.codes is not None
    before = len(names)
    numbers = np.empty(len(column.texts), dtype=np.int32)
    wrong: tuple[Mistake, int] | None = None
    for code, text in enumerate(column.texts):
        plain = text.strip().encode(errors="surrogatepass")
        if b"\0" in plain or not is_utf8(plain):
            wrong = wrong or (Mistake.NUL_BYTE if b"\0" in plain else Mistake.NOT_UTF8, code)
            continue
        numbers[code] = names.take(plain)
        if known and numbers[code] >= before and wrong is None:
            wrong = (Mistake.UNKNOWN, code)
    if (column.codes < 0).any():
        row = int((column.codes < 0).argmax())
        raise UserError(f"{table.at(row, column.name)}: the id is missing; fill it in")
    if wrong is None and new:
        _, first = np.unique(column.codes, return_index=True)
        if len(first) < len(column.codes):
            row = int(np.setdiff1d(np.arange(len(column.codes)), first)[0])
            text = column.texts[column.codes[row]]
            raise UserError(
                f"{table.at(row, column.name)}: the id {text[:40]!r} is there a second time; give "
                "every node its own id"
            )
    if wrong is not None:
        what, code = wrong
        row = int((column.codes == code).argmax())
        found = Found(what, row + 1, 0, 0, column.texts[code].encode(errors="replace"))
        raise UserError(str(explain(found, table.name, [column.name])).replace("line", "row", 1))
    return Column(column.name, codes=numbers[column.codes])
