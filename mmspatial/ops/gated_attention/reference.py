"""The definition of `gated_attention`: every step written out, any dtype, N x N memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._softmax import exact_logits, masked_softmax
from ..positions import Positions, distance


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

    dist = distance(positions, 'manhattan', q.device, dtype)
    if q.dim() == 4:
        dist = dist[0]
    gate = gate.to(dtype)
    rate = alpha.to(dtype)[:, None, None] / 2 * (gate.unsqueeze(-1) + gate.unsqueeze(-2))
    bias = -(rate * dist.unsqueeze(-3)).abs()  # (B, [G,] M, n, n)
    bias = F.pad(bias, (num_prefix, 0, num_prefix, 0))

    weights = masked_softmax(exact_logits(q, k, scale) + bias, key_mask)
    return weights.to(v.dtype) @ v
