"""What all formats share: a file as a function, and silence around torch's converters."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

Run: TypeAlias = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""From the inputs to the outputs, by their names."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without gradients, and without what torch and its converters tell of their internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
