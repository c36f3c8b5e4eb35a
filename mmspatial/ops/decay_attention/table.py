"""`decay_attention` with a fixed bias as a table that is made once.

Good while the table is small: reading it is then as fast as computing the bias. PyTorch's own
attention takes it as a mask; very short rows and groups, since that has a cost for each head of
each group, go through batched matrix products instead, some groups at a time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._chunked import softmax_, stack, wide
from .._library import grouped_mask
from .._tables import cached_table
from ..positions import Positions, is_fixed
from .reference import decay_bias

# Entries of the largest table that is worth keeping: 32 MB in float32.
_MAX_ENTRIES = 2**23
# Keys up to which batched products are faster than PyTorch's attention where all groups share a
# bias, and how many logits of theirs stay in a core's cache (CPU, one thread, no gradients).
_MAX_BATCHED = 56
_BATCHED_ENTRIES = 2**18


def why_not(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    positions: Positions,
    key_mask: Tensor | None,
) -> str | None:
    """Return why it cannot run with these tensors, None if it can."""
    if log_decay.requires_grad or (isinstance(positions, Tensor) and positions.requires_grad):
        return 'its bias is fixed, but log_decay or positions want a gradient'
    if key_mask is not None and key_mask.dim() == q.dim() - 2 and key_mask.shape[0] > 1:
        return 'key_mask differs between images'
    if not q.dtype == k.dtype == v.dtype:
        return f'q, k and v have several dtypes: {q.dtype}, {k.dtype}, {v.dtype}'
    return None


def pays(q: Tensor, v: Tensor, positions: Positions) -> bool:
    """Say whether it is the fastest for these tensors."""
    groups = positions.shape[0] if isinstance(positions, Tensor) else 1
    entries = groups * q.shape[-3] * q.shape[-2] ** 2
    return q.is_cpu and q.shape[-1] == v.shape[-1] and entries <= _MAX_ENTRIES


def decay_attention_table(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    positions: Positions,
    *,
    metric: str,
    scale: float | None,
    num_prefix: int,
    key_mask: Tensor | None,
) -> Tensor:
    """Compute `mmspatial.ops.decay_attention` for a bias without gradients."""
    mask = grouped_mask(key_mask, q)  # (1, G or 1, L or 1)
    bias = _bias_table(log_decay, positions, mask, metric, num_prefix).to(wide(q.dtype))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if q.dim() == 5 and q.stride(-2) > q.stride(1):
        # Columns and dilated groups: their tokens lie too far apart to be read many times.
        q, k, v = (t.contiguous() for t in (q, k, v))
    if q.dim() == 4:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    elif _takes_products(q, k, v, bias):
        out = _attend_by_products(q, k, v, bias, scale)
    elif bias.shape[0] == 1 and all(_is_mergeable(t) for t in (q, k, v)):
        flat = (t.flatten(0, 1) for t in (q, k, v))
        out = F.scaled_dot_product_attention(*flat, attn_mask=bias, scale=scale)
        out = out.unflatten(0, q.shape[:2])
    else:
        parts = [
            F.scaled_dot_product_attention(*image, attn_mask=bias, scale=scale)
            for image in zip(q, k, v, strict=True)
        ]
        out = torch.stack(parts) if len(parts) > 1 else parts[0].unsqueeze(0)
    if mask is None:
        return out
    return out.masked_fill(~mask.any(-1)[0, :, None, None, None], 0.0)


def _takes_products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> bool:
    """Say whether to attend by batched products, which are for inference."""
    if torch.compiler.is_compiling() or not q.is_cpu:
        return False
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    return len(bias) == 1 and q.shape[-2] <= _MAX_BATCHED and not training


def _attend_by_products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Attend by batched matrix products: ``(B, G, M, L, D)`` to ``(B, G, M, L, E)``."""
    flat = [t.flatten(0, 1).to(bias.dtype) for t in (q, k, v)]  # (B·G, M, L, D)
    step = max(1, _BATCHED_ENTRIES // bias.numel())
    parts = []
    for tensors in zip(*(t.split(step) for t in flat), strict=True):
        queries, keys, values = (stack(t) for t in tensors)  # (g·M, L, D)
        logits = bias.new_empty(len(tensors[0]), *bias.shape[1:]).copy_(bias)
        logits = stack(logits).baddbmm_(queries, keys.transpose(1, 2), alpha=scale)
        parts.append(torch.bmm(softmax_(logits), values))
    out = torch.cat(parts) if len(parts) > 1 else parts[0]
    return out.view(v.shape).to(v.dtype)


def _is_mergeable(x: Tensor) -> bool:
    """Say whether images and groups can be viewed as one axis."""
    return x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)


def _bias_table(
    log_decay: Tensor,
    positions: Positions,
    key_mask: Tensor | None,
    metric: str,
    num_prefix: int,
) -> Tensor:
    """Return the bias, from the cache where it can be there.

    Args:
        log_decay: ``(M,)``.
        positions: A grid, or coordinates ``(G or 1, n, 2)``.
        key_mask: ``(1, G or 1, L or 1)``, or None.
        metric: Of the distance.
        num_prefix: Tokens P in front.

    Returns:
        ``(G or 1, M, L, L)`` in at least float32; minus infinity for keys left out, but for a
        query which has no other: it attends to all of them, lest it gives NaN, and the caller
        clears its output.
    """
    tensors = [t for t in (log_decay, positions, key_mask) if isinstance(t, Tensor)]
    if not all(is_fixed(t) for t in tensors):
        return _make(log_decay, positions, key_mask, metric, num_prefix)
    # Versions change when a tensor is written to.
    versions = tuple(t._version for t in tensors)
    return _cached(log_decay, positions, key_mask, metric, num_prefix, versions)


@cached_table
def _cached(
    log_decay: Tensor,
    positions: Positions,
    key_mask: Tensor | None,
    metric: str,
    num_prefix: int,
    versions: tuple[int, ...],
) -> Tensor:
    return _make(log_decay, positions, key_mask, metric, num_prefix)


def _make(
    log_decay: Tensor,
    positions: Positions,
    key_mask: Tensor | None,
    metric: str,
    num_prefix: int,
) -> Tensor:
    """Compute `_bias_table`."""
    dtype = torch.promote_types(log_decay.dtype, torch.float32)
    bias = decay_bias(log_decay.to(dtype), positions, metric=metric, num_prefix=num_prefix)
    if key_mask is not None:
        mask = key_mask[0]
        gone = ~(mask | ~mask.any(-1, keepdim=True))
        bias = bias.masked_fill(gone[:, None, None, :], -torch.inf)
    return bias
