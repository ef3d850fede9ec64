"""Numbers as compact text: typed arrays in base64, attention and shares in 8 bits."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

NAMES = {"|u1": "u8", "<u2": "u16", "<i2": "i16", "<u4": "u32"}
"""numpy's names of the types, little-endian, and the page's."""


def packed(values: np.ndarray) -> dict[str, str]:
    """An array as the page reads it: the type of its numbers, and their bytes in base64."""
    plain = np.ascontiguousarray(values)
    plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    return {"type": NAMES[plain.dtype.str], "data": base64.b64encode(plain.tobytes()).decode()}


def packed_classes(classes: np.ndarray, num_classes: int) -> dict[str, str]:
    """Class numbers in one byte where they fit, else in two; none may be negative."""
    return packed(classes.astype(np.uint8 if num_classes <= 256 else np.uint16))


def packed_shares(shares: np.ndarray) -> dict[str, str]:
    """Numbers in [0, 1] in one byte each: the error is at most 1/510."""
    return packed(np.rint(255 * np.clip(shares, 0, 1)).astype(np.uint8))


def packed_weights(weights: np.ndarray) -> dict[str, Any]:
    """Attention weights α ≥ 0 in one byte each: α = scale · (byte / 255)².

    The square spends the bytes on small weights, of which a node with many neighbours has only
    such: the error is at most sqrt(α · scale) / 255 + scale / 260,100.
    """
    scale = float(weights.max(initial=0.0))
    shares = np.sqrt(np.maximum(weights, 0) / scale) if scale > 0 else np.zeros(weights.shape)
    return {"scale": scale, **packed_shares(shares)}


def packed_positions(positions: np.ndarray) -> dict[str, str]:
    """Positions [n, 2] in two bytes per coordinate; both axes have the same scale."""
    if not len(positions):
        return packed(np.zeros(0, dtype=np.uint16))
    low = positions.min(0)
    size = float((positions.max(0) - low).max())
    shares = (positions - low) / (size if size > 0 else 1.0)
    return packed(np.rint(65535 * shares).astype(np.uint16))


def evenly_chosen(count: int, most: int) -> list[int]:
    """At most ``most`` (≥ 1) of the numbers 0 … count − 1, evenly spaced; the last one always."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count - 1]
    return sorted(set(np.linspace(0, count - 1, most).round().astype(int).tolist()))
