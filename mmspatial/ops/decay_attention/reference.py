"""The definition of `decay_attention`: every step written out, any dtype, N x N memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._softmax import exact_logits, masked_softmax
from ..positions import Positions, distance


def decay_bias(
    log_decay: Tensor, positions: Positions, *, metric: str = 'manhattan', num_prefix: int = 0
) -> Tensor:
    """Compute B of `mmspatial.ops.decay_attention`, in the dtype of ``log_decay``.

    Returns:
        ``(G or 1, M, L, L)``.
    """
    dist = distance(positions, metric, log_decay.device, log_decay.dtype)
    bias = log_decay[:, None, None] * dist.unsqueeze(-3)  # (G, M, n, n)
    return F.pad(bias, (num_prefix, 0, num_prefix, 0))


def decay_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    positions: Positions,
    *,
    metric: str = 'manhattan',
    scale: float | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    mode: str = 'logit',
) -> Tensor:
    """Compute `mmspatial.ops.decay_attention` as its formula says."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = torch.promote_types(q.dtype, torch.float32)
    bias = decay_bias(log_decay.to(dtype), positions, metric=metric, num_prefix=num_prefix)

    logits = exact_logits(q, k, scale)
    if mode == 'logit':
        logits = logits + bias
    weights = masked_softmax(logits, key_mask)
    if mode == 'post':
        weights = weights * bias.exp()
    return weights.to(v.dtype) @ v
