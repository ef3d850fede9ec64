"""Checks of the inputs of a compiled program, before compiled code reads them.

AOTInductor compiles for the types and strides of the example inputs and by default does not check
those of other inputs. Float64 features or a transposed ``edge_index`` would give wrong logits, and
int32 edges would crash the process. The operators below are not compiled: the package calls torch's
own, which respect strides and raise exceptions.

The compiler may drop or delay an operator whose result is unused. So each check returns 0, which is
added to the value that it has checked.
"""

from __future__ import annotations

import torch
from torch import Tensor


def checked(x: Tensor) -> Tensor:
    """A contiguous copy of an input; refuses another type and another number of elements."""
    nowhere = torch.zeros(1, dtype=torch.bool)
    same_type = x.new_zeros(1).masked_scatter(nowhere, x)
    copied: Tensor = torch.ops.aten._reshape_copy(x, x.shape)
    return copied + same_type


def checked_if_given(x: Tensor | None) -> Tensor | None:
    return None if x is None else checked(x)


def checked_numbers(x: Tensor, count: int) -> Tensor:
    """x [k] int64 as it is; refuses numbers below 0, and ``count`` and above."""
    wrong = ((x < 0) | (x >= count)).any().unsqueeze(0)
    # where the mask is true, masked_scatter takes a number from a source that has none
    return x + x.new_zeros(1).masked_scatter(wrong, x.new_empty(0))
