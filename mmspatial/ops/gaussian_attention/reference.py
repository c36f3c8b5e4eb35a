"""The definition of `gaussian_attention`: every step written out, any dtype, N x N memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._softmax import exact_logits, masked_softmax
from ..positions import Positions, grid_positions


def gaussian_bias(
    alpha: Tensor,
    var: Tensor,
    positions: Positions,
    *,
    floor: float | None = None,
    eps: float = 0.1,
    num_prefix: int = 0,
) -> Tensor:
    """Compute B of `mmspatial.ops.gaussian_attention`, in the dtype of ``alpha``.

    Returns:
        ``(B, [G,] M, L, L)``.
    """
    width = var + eps
    if not isinstance(positions, Tensor):
        positions = grid_positions(*positions, alpha.device)
    positions = positions.to(alpha.device, alpha.dtype)
    exponent = torch.zeros((), dtype=alpha.dtype, device=alpha.device)
    for axis in range(2):
        where = positions[..., axis]  # (G, n)
        power = -0.5 * (where.unsqueeze(-1) - where.unsqueeze(-2)).square()  # (G, n, n)
        if floor is not None:
            power = power.clamp(min=floor)
        exponent = exponent + power.unsqueeze(-3) / width[..., axis, None]  # (B, [G,] M, n, n)
    return F.pad(alpha.unsqueeze(-1) * exponent.exp(), (num_prefix, 0, num_prefix, 0))


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
    bias = gaussian_bias(
        alpha.to(dtype), var.to(dtype), positions, floor=floor, eps=eps, num_prefix=num_prefix
    )

    logits = exact_logits(q, k, scale) + bias
    if attn_bias is not None:
        logits = logits + attn_bias
    return masked_softmax(logits, key_mask).to(v.dtype) @ v
