"""Ways to spoil a file: Hypothesis strategies that begin with what is valid."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import strategies as st

Content: TypeAlias = bytes | str
"""What a file holds; or, as text, a name of :data:`PLACES`."""
Files: TypeAlias = dict[str, Content]
"""Path below the example's folder → content."""

PLACES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "nothing": lambda path: None,
    "a loop": lambda path: path.symlink_to(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}
"""What may be there instead of a regular file."""

TOKENS = (
    b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x1b[31m", b"\r",
    b"\n", b'"', b"'", b'""', b",", b";", b"\t", b"#", b"%", b"\\", b"\\u0000", b"\\ud800", b"nan",
    b"-inf", b"1e999", b"1e-999", b"1e39", b"-1", b"0", b"-0.0", b"0x10", b"1_000", b"4294967296",
    b"18446744073709551616", b"9" * 5000, b"null", b"true", b"[]", b"{}", b"../", b"/dev/zero",
    b"=cmd", b" " * 5000, b"[" * 100_000, b'{"a":' * 2000, b"<node>" * 20_000,
    "café ½ ١ \u202e".encode(),
)  # fmt: skip
"""Bytes that readers stumble over."""


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 10**4, 10**6, 2**31, 2**63 - 1, 2**63, 10**30, -(10**30),
    0.5, -0.0, 1e-300, 1e308, math.nan, math.inf, -math.inf, "", "x", "1", "deepgat", "\0",
    "\ud800", "a\nb", "x" * 300, "../x", "/dev/zero", "$\\frac", "<script>", [], {}, [None],
    [1, "a"], {"": None}, {"x": {"y": [1]}}, nested(30), nested(300),
)  # fmt: skip
"""Values that nobody expects."""

NUMBER = re.compile(rb"\d+")


@st.composite
def spoiled(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds after one to five changes of its bytes."""
    raw = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(raw)))
        to = min(len(raw), at + draw(st.integers(1, 40)))
        how = draw(st.sampled_from(("set", "set", "token", "token", "number", "number", "cut",
                                    "drop", "repeat", "splice", "swap")))  # fmt: skip
        if how == "set":
            raw = raw[:at] + bytes([draw(st.integers(0, 255))]) + raw[at + 1 :]
        elif how == "token":
            after = draw(st.sampled_from((at, to)))
            raw = raw[:at] + draw(st.sampled_from(TOKENS)) + raw[after:]
        elif how == "number" and (found := list(NUMBER.finditer(raw))):
            spot = draw(st.sampled_from(found))
            raw = raw[: spot.start()] + draw(st.sampled_from(TOKENS)) + raw[spot.end() :]
        elif how == "cut":
            raw = raw[:at]
        elif how == "drop":
            raw = raw[:at] + raw[to:]
        elif how == "repeat":
            raw = raw[:to] + raw[at:to] * draw(st.sampled_from((1, 2, 1000))) + raw[to:]
        elif how == "splice":
            other = draw(st.sampled_from(seeds))
            raw = raw[:at] + other[draw(st.integers(0, len(other))) :]
        elif how == "swap":
            raw = raw[:at] + raw[to : to + 40] + raw[at:to] + raw[to + 40 :]
    return raw


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Every place inside a value: (list or object, key)."""
    found = []
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += [(value, key), *_spots(inner)]
    return found


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """A value of JSON with one to three of its parts replaced, removed, moved or wrapped."""
    whole = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        spots = _spots(whole)
        if not spots:
            break
        holder, key = spots[draw(st.integers(0, len(spots) - 1))]
        how = draw(st.sampled_from(("odd", "odd", "odd", "gone", "moved", "wrapped", "more")))
        if how == "odd":
            holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
        elif how == "gone":
            del holder[key]
        elif how == "moved":
            other, there = spots[draw(st.integers(0, len(spots) - 1))]
            holder[key] = copy.deepcopy(other[there])
        elif how == "wrapped":
            holder[key] = [holder[key]]
        elif isinstance(holder, dict):
            holder[draw(st.sampled_from(("x", "", "\ud800", "0", "format")))] = copy.deepcopy(
                draw(st.sampled_from(ODD))
            )
        else:
            holder *= 3
    return whole


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def header_of(weights: bytes) -> tuple[Any, bytes]:
    """The header of a safetensors file, and what follows it."""
    (size,) = struct.unpack("<Q", weights[:8])
    return json.loads(weights[8 : 8 + size]), weights[8 + size :]


def with_header(header: Any, rest: bytes) -> bytes:
    text = json_bytes(header)
    return struct.pack("<Q", len(text)) + text + rest


def misplaced(files: Files) -> st.SearchStrategy[Files]:
    """Valid files, one of which is no regular file."""
    return st.builds(
        lambda name, place: {**files, name: place},
        st.sampled_from(sorted(files)),
        st.sampled_from(sorted(PLACES)),
    )


def damaged(files: Files) -> st.SearchStrategy[Files]:
    """Valid files with the bytes of one or two changed."""
    seeds = [content for content in files.values() if isinstance(content, bytes)]

    def one(name: str) -> st.SearchStrategy[Files]:
        own = files[name]
        assert isinstance(own, bytes)
        return spoiled([own, own, *seeds]).map(lambda content: {name: content})

    some = st.sampled_from(sorted(files)).flatmap(one)
    return st.builds(lambda first, second: {**files, **first, **second}, some, st.just({}) | some)


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            PLACES[content](path)
