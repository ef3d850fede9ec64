"""The table kernel (``ops/cpu/table.cpp``) behind the same two classes as the definition."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from deepgat.data.tables.text import SHOWN, Found, Kind, Mistake
from deepgat.ops.cpu import kernels

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "names_new": (_POINTER, []),
    "names_free": (None, [_POINTER]),
    "names_count": (_LONG, [_POINTER]),
    "names_bytes": (_LONG, [_POINTER]),
    "names_copy": (None, [_POINTER, _POINTER, _POINTER]),
    "names_take": (_LONG, [_POINTER, ctypes.c_char_p, _LONG]),
    "table_new": (_POINTER, [_LONG, _POINTER, _POINTER, _INT, _INT, _LONG]),
    "table_free": (None, [_POINTER]),
    "table_feed": (_LONG, [_POINTER, _POINTER, _LONG, _INT]),
    "table_state": (_LONG, [_POINTER, _POINTER, _POINTER, _POINTER]),
    "table_jumps": (_LONG, [_POINTER, _POINTER]),
    "table_column": (None, [_POINTER, _LONG, _POINTER]),
}


@cache
def functions() -> dict[str, Any] | None:
    """The kernel's functions; None where it was not built."""
    loaded = kernels.library()
    if loaded is None or not hasattr(loaded, "deepgat_table_new_base"):
        return None
    found = {}
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, f"deepgat_{name}_base")
        function.restype, function.argtypes = result, arguments
        found[name] = function
    return found


def _function(name: str) -> Any:
    found = functions()
    assert found is not None
    return found[name]


class NativeNames:
    def __init__(self) -> None:
        self.handle = _function("names_new")()
        self.free = _function("names_free")

    def __del__(self) -> None:
        self.free(self.handle)

    def take(self, text: bytes) -> int:
        return int(_function("names_take")(self.handle, text, len(text)))

    def texts(self) -> list[str]:
        texts = np.empty(_function("names_bytes")(self.handle), dtype=np.uint8)
        ends = np.empty(len(self) + 1, dtype=np.int64)
        _function("names_copy")(self.handle, texts.ctypes.data, ends.ctypes.data)
        whole, places = texts.tobytes(), ends.tolist()
        pairs = pairwise(places)
        if whole.isascii():
            plain = whole.decode("ascii")
            return [plain[begin:end] for begin, end in pairs]
        return [whole[begin:end].decode() for begin, end in pairs]

    def __len__(self) -> int:
        return int(_function("names_count")(self.handle))


class NativeTable:
    def __init__(
        self,
        kinds: Sequence[Kind],
        names: Sequence[NativeNames | None],
        delimiter: str,
        comments: bool,
        first_line: int,
    ) -> None:
        self.kinds, self.names = kinds, names  # the dictionaries must outlive the table
        count = len(kinds)
        handles = (_POINTER * count)(*(None if item is None else item.handle for item in names))
        self.handle = _function("table_new")(
            count, (_INT * count)(*kinds), handles, ord(delimiter), comments, first_line
        )
        self.free = _function("table_free")

    def __del__(self) -> None:
        self.free(self.handle)

    def feed(self, buffer: memoryview, last: bool) -> int:
        if not len(buffer):
            return 0
        start = np.frombuffer(buffer, dtype=np.uint8).ctypes.data
        return int(_function("table_feed")(self.handle, start, len(buffer), last))

    def rows(self) -> int:
        return self._state()[0]

    def turned(self) -> list[bool]:
        return self._state()[1]

    def mistake(self) -> Found | None:
        return self._state()[2]

    def _state(self) -> tuple[int, list[bool], Found | None]:
        turned = (_INT * len(self.kinds))()
        mistake, text = (_LONG * 5)(), ctypes.create_string_buffer(SHOWN)
        rows = _function("table_state")(self.handle, turned, mistake, text)
        found = None
        if mistake[0]:
            what, line, column, detail, size = mistake
            found = Found(Mistake(what), line, column, detail, text.raw[:size])
        return int(rows), [bool(item) for item in turned], found

    def column(self, number: int) -> np.ndarray:
        numeric = self.kinds[number] in (Kind.NUMBER, Kind.AUTO)
        out = np.empty(self.rows(), dtype=np.float64 if numeric else np.int32)
        _function("table_column")(self.handle, number, out.ctypes.data)
        return out

    def jumps(self) -> np.ndarray:
        found = np.empty((_function("table_jumps")(self.handle, None), 2), dtype=np.int64)
        _function("table_jumps")(self.handle, found.ctypes.data)
        return found
