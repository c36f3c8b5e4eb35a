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
        branch: Fresh, as from a linear layer, whose gradient does not need it.
        x: Of the same shape.

    Returns:
        The sum, in the memory of ``branch`` unless autocast gave that another dtype.
    """
    return branch.add_(x) if branch.dtype == x.dtype else branch + x


def gelu(x: Tensor) -> Tensor:
    """Apply GELU to a fresh tensor, in its memory unless the gradient will need it."""
    if torch.is_grad_enabled():
        return F.gelu(x)
    return torch.ops.aten.gelu_(x)
