"""Reads NumPy files safely: they cannot run code or allocate more memory than they hold."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from deepgat.data.tables.opening import check_unpacked, opened, parsing, shown
from deepgat.errors import UserError

Arrays: TypeAlias = Mapping[str, Callable[[], np.ndarray]]
"""The arrays of a file by name; calling one reads it."""
CHECKED = 2**20
"""Numbers to check at a time."""


def read_npy(path: Path) -> np.ndarray:
    """The array of a .npy file, memory-mapped."""
    with opened(path), _parsing(shown(path)):
        return np.lib.format.open_memmap(path, mode="r")


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
    total = sum(item.file_size for item in infos)
    remedy = "save it uncompressed with numpy.savez"
    check_unpacked(path, path.stat().st_size, total, remedy=remedy)

    def reader(item: zipfile.ZipInfo) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            with _parsing(f"{name}, array {item.filename[:-4]!r}"):
                with zipfile.ZipFile(path) as archive, archive.open(item) as member:
                    if scratch is None:
                        return np.lib.format.read_array(member, allow_pickle=False)
                    unpacked = scratch / f"{len(list(scratch.iterdir()))}.npy"
                    with unpacked.open("xb") as file:
                        shutil.copyfileobj(member, file, 2**20)
                return np.lib.format.open_memmap(unpacked, mode="r")

        return read

    return {item.filename[:-4]: reader(item) for item in infos if item.filename.endswith(".npy")}


def _parsing(name: str) -> AbstractContextManager[None]:
    return parsing(f"{name} cannot be read", "save numbers or texts again with numpy")


def sparse_matrix(arrays: Arrays, part: str, name: str) -> sp.csr_matrix:
    """The CSR matrix in the arrays PART_data, _indices, _indptr and _shape, checked."""
    keys = [f"{part}_{key}" for key in ("data", "indices", "indptr", "shape")]
    for key in keys:
        if key not in arrays:
            raise UserError(f"{name} has {keys[0]} but no {key}: save all four of them")
    data, indices, indptr, shape = (arrays[key]() for key in keys)
    if any(array.ndim != 1 for array in (data, indices, indptr)):
        raise UserError(f"{name}: {part}_data, _indices and _indptr must have one dimension")
    if data.dtype.kind not in "biuf" or any(a.dtype.kind not in "iu" for a in (indices, indptr)):
        raise UserError(f"{name}: {part}_data must be numbers, _indices and _indptr integers")
    if data.dtype == np.float16:  # which scipy does not know
        data = data.astype(np.float32)
    # Unsigned pointers that fall look right to scipy, and it drops entries after the last pointer.
    if (indptr[1:] < indptr[:-1]).any() or len(indptr) < 1 or indptr[-1] != len(indices):
        raise UserError(
            f"{name}: the arrays of {part} do not fit together ({part}_indptr must rise to the "
            f"number of {part}_indices, {len(indices)})"
        )
    try:
        matrix = sp.csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{name}: the arrays of {part} do not fit together ({error})") from None
    for begin in range(0, len(data), CHECKED):
        check_finite(data[begin : begin + CHECKED], f"{name}: {part}_data")
    return matrix


def check_finite(values: np.ndarray, name: str) -> None:
    """Refuse numbers that a float32 cannot hold, and complex ones."""
    if np.iscomplexobj(values):
        raise UserError(f"{name} holds complex numbers; expected real ones")
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all() or np.abs(numbers).max(initial=0) > 3.4e38:
        raise UserError(f"{name} holds a number that is missing or too large")
