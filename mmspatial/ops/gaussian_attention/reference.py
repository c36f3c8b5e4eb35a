"""The definition of `gaussian_attention`: every step written out, any dtype, N x N memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._softmax import exact_logits, masked_softmax
from ..positions import Positions, grid_positions


def gaussian_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    var: Tensor,
    positions: Positions,
    *,
    floor: float | None = None,
    eps: float = 0.1,
    scale: float | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
) -> Tensor:
    """Compute `mmspatial.ops.gaussian_attention` as its formula says."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = torch.promote_types(q.dtype, torch.float32)
    alpha, width = alpha.to(dtype), var.to(dtype) + eps

    if not isinstance(positions, Tensor):
        positions = grid_positions(*positions, q.device)
    positions = positions.to(q.device, dtype)
    if q.dim() == 4:
        positions = positions[0]
    exponent = torch.zeros((), dtype=dtype, device=q.device)
    for axis in range(2):
        where = positions[..., axis]  # ([G,] n)
        power = -0.5 * (where.unsqueeze(-1) - where.unsqueeze(-2)).square()  # ([G,] n, n)
        if floor is not None:
            power = power.clamp(min=floor)
        exponent = exponent + power.unsqueeze(-3) / width[..., axis, None]  # (B, [G,] M, n, n)
    bias = F.pad(alpha.unsqueeze(-1) * exponent.exp(), (num_prefix, 0, num_prefix, 0))

    logits = exact_logits(q, k, scale) + bias
    if attn_bias is not None:
        logits = logits + attn_bias
    return masked_softmax(logits, key_mask).to(v.dtype) @ v
