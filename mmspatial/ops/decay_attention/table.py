"""`decay_attention` with a fixed bias as a table that is made once.

Good while the table is small: reading it is then as fast as computing the bias. PyTorch's own
attention takes it as a mask; short rows and groups, since that has a cost for each head of each
group, go through batched matrix products instead, as many at a time as the memory allows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._chunked import softmax_, wide
from .._library import grouped_mask
from .._tables import cached_table
from ..positions import Positions, is_fixed
from .reference import decay_bias

# Entries of the largest table that is worth keeping: 32 MB in float32.
_MAX_ENTRIES = 2**23
# Keys up to which batched products are faster than PyTorch's attention where all groups share a
# bias, and how many logits these may hold at once (CPU, one thread).
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
    if q.dim() == 4:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    elif _takes_products(q, bias):
        out = _attend_by_products(q, k, v, bias, scale)
    else:
        out = _attend_in_groups(q, k, v, bias, scale)
    if mask is None:
        return out
    return out.masked_fill(~mask.any(-1)[0, :, None, None, None], 0.0)


def _takes_products(q: Tensor, bias: Tensor) -> bool:
    """Say whether to attend by batched products: in short rows, but where PyTorch's attention fits.

    It goes by 16 keys.
    """
    if not q.is_cpu:
        return False
    length = q.shape[-2]
    return len(bias) == 1 and length <= _MAX_BATCHED and (length < 32 or length % 16 != 0)


def _attend_by_products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Attend by batched matrix products: ``(B, G, M, L, D)`` to ``(B, G, M, L, E)``."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q.to(bias.dtype) @ k.to(bias.dtype).transpose(-2, -1)
        in_place = None if torch.is_grad_enabled() else logits
        logits = torch.add(bias, logits, alpha=scale, out=in_place)
        return (softmax_(logits) @ v.to(bias.dtype)).to(v.dtype)

    step = max(1, _BATCHED_ENTRIES // (q.shape[0] * bias.numel()))
    if step >= q.shape[1]:
        return attend(q, k, v)
    tiles = zip(*(t.split(step, 1) for t in (q, k, v)), strict=True)
    return torch.cat([attend(*tile) for tile in tiles], 1)


def _attend_in_groups(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Attend by PyTorch's own attention, which has no axis for groups."""
    if q.stride(-2) > q.stride(1):
        # Columns and dilated groups: their tokens lie too far apart to be read many times.
        q, k, v = (t.contiguous() for t in (q, k, v))
    if bias.shape[0] == 1 and all(_is_mergeable(t) for t in (q, k, v)):
        flat = (t.flatten(0, 1) for t in (q, k, v))
        out = F.scaled_dot_product_attention(*flat, attn_mask=bias, scale=scale)
        return out.unflatten(0, q.shape[:2])
    images = [
        F.scaled_dot_product_attention(*image, attn_mask=bias, scale=scale)
        for image in zip(q, k, v, strict=True)
    ]
    return torch.stack(images) if len(images) > 1 else images[0].unsqueeze(0)


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
