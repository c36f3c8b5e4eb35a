"""The definition of `gated_attention`: every step written out, any dtype, N x N memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._softmax import exact_logits, masked_softmax
from ..positions import Positions, distance


def gated_bias(gate: Tensor, alpha: Tensor, positions: Positions, *, num_prefix: int = 0) -> Tensor:
    """Compute B of `mmspatial.ops.gated_attention`, in the dtype of ``gate``.

    Returns:
        ``(B, [G,] M, L, L)``.
    """
    dist = distance(positions, 'manhattan', gate.device, gate.dtype)
    rate = alpha[:, None, None] / 2 * (gate.unsqueeze(-1) + gate.unsqueeze(-2))
    bias = -(rate * dist.unsqueeze(-3)).abs()  # (B, [G,] M, n, n)
    return F.pad(bias, (num_prefix, 0, num_prefix, 0))


def gated_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    alpha: Tensor,
    positions: Positions,
    *,
    scale: float | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute `mmspatial.ops.gated_attention` as its formula says."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = torch.promote_types(q.dtype, torch.float32)
    bias = gated_bias(gate.to(dtype), alpha.to(dtype), positions, num_prefix=num_prefix)
    weights = masked_softmax(exact_logits(q, k, scale) + bias, key_mask)
    return weights.to(v.dtype) @ v
