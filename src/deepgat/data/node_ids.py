"""Ids of nodes as arrays that can be mapped from disk, found by binary search."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from deepgat.errors import UserError


@dataclass(frozen=True, eq=False)
class NodeIds:
    """n distinct texts; looking one up reads about log₂ n of them."""

    ptr: np.ndarray
    """[n + 1] int64: id i is ``text[ptr[i]:ptr[i+1]]``."""
    text: np.ndarray
    """[·] uint8, in UTF-8."""
    order: np.ndarray
    """[n] int64: the ids' numbers in the order of their bytes."""

    @staticmethod
    def of(texts: Sequence[str]) -> NodeIds:
        import pyarrow as pa
        import pyarrow.compute as pc

        ids = pa.array(texts, pa.large_string())
        _, ptr, text = ids.buffers()
        return NodeIds(
            np.frombuffer(ptr, np.int64, len(ids) + 1),
            np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8),
            pc.sort_indices(ids).to_numpy().astype(np.int64),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        return {"id_ptr": self.ptr, "id_text": self.text, "id_order": self.order}

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> str:
        return self._bytes(number).decode(errors="replace")

    def texts(self) -> tuple[str, ...]:
        """All ids, in the order of their numbers."""
        ends, text = self.ptr.tolist(), self.text.tobytes()
        return tuple(text[begin:end].decode(errors="replace") for begin, end in pairwise(ends))

    def find(self, text: str) -> int:
        """The number of the node with this id, or −1."""
        wanted = text.encode(errors="replace")
        places = range(len(self))
        place = bisect_left(places, wanted, key=lambda place: self._bytes(int(self.order[place])))
        if place == len(self):
            return -1
        number = int(self.order[place])
        return number if self._bytes(number) == wanted else -1

    def _bytes(self, number: int) -> bytes:
        if not 0 <= number < len(self):
            raise UserError("the kept graph is damaged: id_order names nodes that do not exist")
        return self.text[self.ptr[number] : self.ptr[number + 1]].tobytes()
