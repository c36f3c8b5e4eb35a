"""Steps that write over what nobody else reads: fresh outputs of the layer before.

New memory costs about as much as the step itself, since its pages have to be mapped first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def add_to_branch(branch: Tensor, x: Tensor) -> Tensor:
    """Add the residual stream to the output of a branch.

    Args:
        branch: Fresh: nothing but this call reads it.
        x: Of the same shape.

    Returns:
        The sum, in the memory of ``branch`` unless a gradient may need that, or autocast gave it
        another dtype.
    """
    if torch.is_grad_enabled() or branch.dtype != x.dtype:
        return branch + x
    return branch.add_(x)


def gelu(x: Tensor) -> Tensor:
    """Apply GELU to a fresh tensor, in its memory unless a gradient may need that."""
    return F.gelu(x) if torch.is_grad_enabled() else torch.ops.aten.gelu_(x)
