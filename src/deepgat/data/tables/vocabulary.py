"""Texts numbered in the order in which they first appear, such as node ids and categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MOST = 2**31 - 1
ROOM = 4
"""Whole-number ids are looked up in an array if it needs at most this many places per id."""


class Vocabulary:
    """A dictionary from texts to numbers, held as Arrow arrays."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        import pyarrow as pa

        self._texts = pa.chunked_array([pa.array(texts, pa.string())])
        self._place: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, number: int) -> str:
        return str(self._texts[number].as_py())

    def texts(self) -> list[str]:
        """All texts in the order of their numbers."""
        found: list[str] = self._texts.to_pylist()
        return found

    def append(self, texts: Any) -> None:
        """Number more texts, an Arrow array, without looking for those that are known."""
        import pyarrow as pa

        if len(self) + len(texts) > MOST:
            raise OverflowError(f"more than {MOST:,} texts cannot be numbered")
        more = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
        self._texts = pa.chunked_array([*self._texts.chunks, *more], pa.string())
        self._place = None

    def hashed(self) -> int:
        """How many texts :meth:`find` has to put into a hash table."""
        return 0 if len(self._places()) else len(self)

    def find(self, texts: Any) -> np.ndarray:
        """The numbers of an Arrow array of texts, int32; −1 for those that are not known."""
        import pyarrow.compute as pc

        place = self._places()
        whole = whole_numbers(texts) if len(place) else None
        if whole is not None:  # negative numbers are large as unsigned ones
            return place[np.minimum(whole.view(np.uint64), np.uint64(len(place) - 1))]
        found = pc.index_in(texts, value_set=self._texts)
        return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False))

    def add(self, texts: Any) -> np.ndarray:
        """The numbers of an Arrow array of texts, int32; those not known yet get the next ones."""
        import pyarrow as pa
        import pyarrow.compute as pc

        codes = self.find(texts)
        strange = codes < 0
        if strange.any():
            more = texts.filter(pa.array(strange))
            fresh, codes = pc.unique(more), codes.copy()
            codes[strange] = len(self) + pc.index_in(more, value_set=fresh).to_numpy()
            self.append(fresh)
        return codes

    def first_repeated(self) -> int | None:
        """The number of the first text that has a smaller number, too."""
        import pyarrow.compute as pc

        place = self._places()
        distinct = int((place >= 0).sum()) if len(place) else pc.count_distinct(self._texts).as_py()
        if distinct == len(self):
            return None
        codes = self._texts.combine_chunks().dictionary_encode().indices.to_numpy()
        seen = np.maximum.accumulate(codes)[:-1]
        return 1 + int((codes[1:] <= seen).argmax())

    def _places(self) -> np.ndarray:
        """The number of the text "i" at place i, and −1 last; empty if there are other texts."""
        if self._place is None:
            self._place = np.empty(0, dtype=np.int32)
            whole = whole_numbers(self._texts)
            most = ROOM * len(self) + 2**16
            if whole is not None and len(whole) and 0 <= whole.min() <= whole.max() < most:
                self._place = np.full(int(whole.max()) + 2, -1, dtype=np.int32)
                self._place[whole] = np.arange(len(self), dtype=np.int32)
        return self._place


def whole_numbers(texts: Any) -> np.ndarray | None:
    """The numbers int64 ≥ 0 that an Arrow array of texts spells, if ``str`` spells all of them so.

    "007", "0x7" and "-0" are texts of their own.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        whole = np.asarray(pc.cast(texts, pa.int64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        return None
    zeros = np.count_nonzero(whole == 0)
    spelled = (pc.equal(texts, "0"), pc.starts_with(texts, "0"))
    if (whole < 0).any() or any((pc.sum(mask).as_py() or 0) != zeros for mask in spelled):
        return None
    return whole
