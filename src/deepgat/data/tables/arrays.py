"""Reads NumPy files safely: they cannot run code or allocate more memory than they hold."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp

from deepgat.data.tables.opening import opened, shown
from deepgat.errors import UserError

MOST_UNPACKED = 2**30
"""An archive may always unpack to this many bytes."""
MOST_RATIO = 100
"""A larger archive may unpack to at most this many times its own size."""
Arrays: TypeAlias = Mapping[str, Callable[[], np.ndarray]]
"""The arrays of a file by name; calling one reads it."""
CHECKED = 2**20
"""Numbers to check at a time."""


def read_npy(path: Path) -> np.ndarray:
    """The array of a .npy file, memory-mapped."""
    with opened(path):
        return _guarded(shown(path), lambda: np.lib.format.open_memmap(path, mode="r"))


def open_npz(path: Path, scratch: Path | None = None) -> Arrays:
    """The arrays of an .npz file by name; calling one reads it.

    With ``scratch``, an empty folder, arrays are unpacked there and memory-mapped.
    """
    name = shown(path)
    with opened(path) as file:
        if not zipfile.is_zipfile(file):
            raise UserError(f"{name} is not an .npz file: it is no zip archive, or is truncated")
        try:
            infos = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise UserError(f"{name} is a damaged archive ({error}): save it again") from error
    total, held = sum(item.file_size for item in infos), path.stat().st_size
    if total > max(MOST_UNPACKED, MOST_RATIO * held):
        raise UserError(
            f"{name} has {held:,} bytes and claims to unpack to {total:,}: this is refused; if "
            "that is correct, save it uncompressed with numpy.savez"
        )

    def reader(item: zipfile.ZipInfo) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            with zipfile.ZipFile(path) as archive, archive.open(item) as member:
                if scratch is None:
                    return np.lib.format.read_array(member, allow_pickle=False)
                unpacked = scratch / f"{len(list(scratch.iterdir()))}.npy"
                with unpacked.open("xb") as file:
                    shutil.copyfileobj(member, file, 2**20)
            return np.lib.format.open_memmap(unpacked, mode="r")

        return lambda: _guarded(f"{name}, array {item.filename[:-4]!r}", read)

    return {item.filename[:-4]: reader(item) for item in infos if item.filename.endswith(".npy")}


def _guarded(name: str, read: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return read()
    except Exception as error:  # zip, zlib, numpy and struct raise different errors
        why = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(
            f"{name} cannot be read ({why}): save numbers or texts again with numpy"
        ) from error


class SparseParts(NamedTuple):
    """A CSR matrix, checked; its arrays are not copied."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]

    def rows(self, begin: int, end: int) -> Any:
        """[end − begin, columns] double."""
        first, last = int(self.indptr[begin]), int(self.indptr[end])
        parts = (
            self.data[first:last].astype(np.float64),
            self.indices[first:last],
            self.indptr[begin : end + 1] - first,
        )
        return sp.csr_matrix(parts, shape=(end - begin, self.shape[1]))


def sparse_parts(arrays: Arrays, part: str, name: str) -> SparseParts:
    """The CSR matrix in the arrays PART_data, _indices, _indptr and _shape, checked."""
    keys = [f"{part}_{key}" for key in ("data", "indices", "indptr", "shape")]
    for key in keys:
        if key not in arrays:
            raise UserError(f"{name} has {keys[0]} but no {key}: save all four of them")
    data, indices, indptr, shape = (arrays[key]() for key in keys)
    whole = all(np.issubdtype(item.dtype, np.integer) for item in (indices, indptr, shape))
    if not whole or shape.shape != (2,) or any(item.ndim != 1 for item in (data, indices, indptr)):
        raise UserError(f"{name}: {part}_indices, _indptr and _shape must be lists of integers")
    if not np.issubdtype(data.dtype, np.number) and data.dtype != bool:
        raise UserError(f"{name}: {part}_data holds {data.dtype} values; expected numbers")
    rows, columns = shape.tolist()
    if not (0 <= rows < 2**31 and 0 <= columns < 2**31) or len(indptr) != rows + 1:
        raise UserError(
            f"{name}: {part}_shape is {rows} × {columns}, which does not fit its {len(indptr)} "
            "row pointers"
        )
    fits = len(data) == len(indices) == (indptr[-1] if len(indptr) else 0) and indptr[0] == 0
    inside = not len(indices) or (indices.min() >= 0 and indices.max() < columns)
    if not fits or not inside or (np.diff(indptr) < 0).any():
        raise UserError(f"{name}: the indices of {part} do not fit its shape {rows} × {columns}")
    for begin in range(0, len(data), CHECKED):
        check_finite(data[begin : begin + CHECKED], f"{name}: {part}_data")
    return SparseParts(data, indices, indptr, (rows, columns))


def check_finite(values: np.ndarray, name: str) -> None:
    """Refuse numbers that a float32 cannot hold."""
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all() or np.abs(numbers).max(initial=0) > 3.4e38:
        raise UserError(f"{name} holds a number that is missing or too large")
