"""Turns the ids of a table in memory into node numbers, by the rules for CSV files."""

from __future__ import annotations

import numpy as np

from deepgat.data.tables.columns import Column, Columns
from deepgat.data.tables.mistakes import Found, explain
from deepgat.data.tables.text import Mistake, is_utf8
from deepgat.data.tables.vocabulary import Vocabulary


def ids_of(
    table: Columns, name: str, names: Vocabulary, *, new: bool = False, known: bool = False
) -> Column:
    """The node numbers of the ids in a column; ids must be unique (``new``) or ``known``."""
    import pyarrow as pa

    column = table.find(name)
    assert column is not None
    column = column.as_texts()
    codes, texts = column.codes, [text.strip() for text in column.texts]
    assert codes is not None

    def refuse(what: Mistake, row: int) -> None:
        text = texts[codes[row]].encode(errors="replace") if codes[row] >= 0 else b""
        where = f"{table.name}, {table.place(row)}"
        raise explain(Found(row, 0, what, text), where, [column.name])

    if (codes < 0).any():
        refuse(Mistake.EMPTY_ID, int((codes < 0).argmax()))
    for code, text in enumerate(texts):
        raw = text.encode(errors="surrogatepass")
        if b"\0" in raw or not is_utf8(raw):
            what = Mistake.NUL_BYTE if b"\0" in raw else Mistake.NOT_UTF8
            refuse(what, int((codes == code).argmax()))
    if new:
        _, first = np.unique(codes, return_index=True)
        if len(first) < len(codes):
            refuse(Mistake.REPEATED, int(np.setdiff1d(np.arange(len(codes)), first)[0]))
    found = pa.array(texts, pa.string())
    numbers = names.find(found) if known else names.add(found)
    if (numbers < 0).any():
        refuse(Mistake.UNKNOWN, int(np.isin(codes, np.flatnonzero(numbers < 0)).argmax()))
    return Column(column.name, codes=numbers[codes])
