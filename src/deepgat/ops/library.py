"""The library of torch operators that compiled code calls at every step.

``torch.library.custom_op`` wraps an operator in Python for autograd and for checks of its outputs,
which takes longer than the rest of such a call. Operators of this library have no wrapper: their
gradients are operators too, and an autograd function outside them connects the two.
"""

import torch

LIBRARY = torch.library.Library("deepgat", "FRAGMENT")
