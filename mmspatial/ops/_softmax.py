"""The steps that the references of all attention ops share, in at least float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def no_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which autocast leaves dtypes alone; it costs nothing without autocast."""
    # Devices without autocast, the meta device among them, refuse the second question.
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def exact_logits(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Compute ``scale · Q Kᵀ`` in at least float32: in float16 large products overflow."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    return q.to(dtype) * scale @ k.to(dtype).transpose(-2, -1)


def masked_softmax(logits: Tensor, key_mask: Tensor | None) -> Tensor:
    """Take the softmax over the keys that a mask leaves.

    Args:
        logits: ``(B, [G,] M, L, L)``.
        key_mask: Bool, broadcastable to ``(B, [G,] L)``, False for keys left out; None for none.

    Returns:
        Weights shaped like ``logits``: zeros for a query without any key.
    """
    if key_mask is None:
        return logits.softmax(-1)
    keep = key_mask[..., None, None, :]
    weights = logits.masked_fill(~keep, torch.finfo(logits.dtype).min).softmax(-1)
    return weights.masked_fill(~keep, 0.0)
