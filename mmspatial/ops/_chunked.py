"""The loop of all `chunked` implementations: attention over tiles of queries, in O(N) memory.

A tile is some queries of some heads (of several groups, where groups are small) against all of
their keys; its logits are small enough to stay in the processor's cache. Each op brings its bias
as a `TileBias`, which fills a tile and sums up the gradients of what the bias is made from.
Nothing is kept for backward but the output: weights are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits of a tile: 4 MB of float32, about a core's cache; less where several passes are made.
_TILE_ENTRIES = 2**20
_BATCHED_ENTRIES = 2**18
_MIN_ROWS, _MAX_ROWS = 32, 256
# Keys up to which batched products over whole groups beat PyTorch's attention, which has a cost
# for each head of each group.
_MAX_BATCHED = 160
# exp() of less takes a slow path for subnormal results, a hundred times as long; such weights
# are below the rounding of any sum that they are part of.
LEAST_EXPONENT = -80.0


class Tile(NamedTuple):
    """Which logits a tile holds: queries ``rows`` of the grid's tokens, all keys."""

    batch: int
    groups: slice
    heads: slice
    rows: slice


class TileBias(Protocol):
    """The bias of an op, tile by tile; its tensors have been through `groups_first`."""

    def fill(self, tile: Tile, out: Tensor) -> None:
        """Write the bias into ``out``, ``(g, m, r, n)``.

        Without prefix tokens it may be off by a number for each query: the softmax cancels it.
        """

    def accumulate(self, tile: Tile, grad: Tensor) -> None:
        """Add the gradients that follow from those of the bias just filled, ``(g, m, r, n)``.

        ``grad`` may be overwritten.
        """


def groups_first(x: Tensor) -> Tensor:
    """Make the batch the groups of a single image where it has one group each: ``(B, 1, …)``.

    Small maps of a batch then share a tile, as groups do.
    """
    return x.transpose(0, 1) if x.shape[1] == 1 else x


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which logits of inputs of ``dtype`` are computed."""
    return torch.promote_types(dtype, torch.float32)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    scale: float,
    num_prefix: int,
    bias: TileBias,
) -> Tensor:
    """Compute ``softmax(scale · Q Kᵀ + B) V``.

    Args:
        q: ``(B, G, M, L, D)``.
        k: Shaped like ``q``.
        v: ``(B, G, M, L, E)``.
        key_mask: Bool, broadcastable to ``(B, G, L)``, False for keys left out; None for none.
        scale: Factor on the products.
        num_prefix: Tokens P in front, without a bias.
        bias: B of the other tokens.

    Returns:
        ``empty_like(v)``; zeros for a query without any key.
    """
    out = torch.empty_like(v)
    keep, dead = keys_to_keep(key_mask, q)
    result = groups_first(out)
    q, k, v = groups_first(q), groups_first(k), groups_first(v)
    fused = _is_fused(q, k, v)
    if fused:  # Every tile reads them: sooner if heads are apart.
        k, v = k.contiguous(), v.contiguous()
    buffer = torch.empty(tile_entries(q), dtype=wide(q.dtype), device=q.device)
    for tile in tiles(q, num_prefix):
        batch, groups, heads, rows = tile
        logits = _fill(bias, tile, buffer, q, keep, num_prefix)
        part = (batch, groups, heads, _token_rows(rows, num_prefix))
        tensors = q[part], k[batch, groups, heads], v[batch, groups, heads]
        if fused:
            result[part] = F.scaled_dot_product_attention(*tensors, attn_mask=logits, scale=scale)
        else:
            result[part] = _attend_by_products(*tensors, logits, scale)
    if dead is not None:
        out.masked_fill_(dead[..., None, None, None], 0.0)
    return out


def _is_fused(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Say whether PyTorch's attention is to do the tiles: only its CPU kernel takes the mask."""
    same = q.dtype == k.dtype == v.dtype and q.shape[-1] == v.shape[-1]
    return q.is_cpu and same and q.shape[3] > _MAX_BATCHED


def _attend_by_products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Attend within a tile by batched matrix products; ``bias`` is overwritten."""
    dtype = bias.dtype
    weights = stack(bias)  # (g·m, r, L)
    keys_t = stack(k.to(dtype)).transpose(-2, -1)
    weights.baddbmm_(stack(q.to(dtype)), keys_t, alpha=scale)
    return torch.bmm(softmax_(weights), stack(v.to(dtype))).view(*q.shape[:-1], v.shape[-1])


def softmax_(logits: Tensor) -> Tensor:
    """Take the softmax over the last axis, perhaps in the memory of ``logits``."""
    length = logits.shape[-1]
    if torch.is_grad_enabled():
        return torch.softmax(logits, -1)
    if 16 <= length <= 256:
        # In place the end of a row that is no whole vector would hold up the next row.
        return torch.softmax(logits, -1, out=logits if length % 16 == 0 else None)
    # Here PyTorch's is slower than its parts; what they leave to keys that are out, minus
    # infinity, is not quite 0, but rounding.
    logits.sub_(logits.amax(-1, keepdim=True)).clamp_(min=LEAST_EXPONENT).exp_()
    return logits.div_(logits.sum(-1, keepdim=True))


def attend_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    scale: float,
    num_prefix: int,
    bias: TileBias,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of `attend`; ``bias`` collects its own.

    Args:
        grad_out: Of the output, ``(B, G, M, L, E)``.
        q: As for `attend`.
        k: As for `attend`.
        v: As for `attend`.
        key_mask: As for `attend`.
        out: What `attend` returned.
        scale: As for `attend`.
        num_prefix: As for `attend`.
        bias: As for `attend`.
        bias_grad: Whether the bias has gradients to collect.

    Returns:
        Gradients of q, k and v, ``empty_like`` each.
    """
    dtype = wide(q.dtype)
    grads = tuple(torch.empty_like(t) for t in (q, k, v))
    dq, dk, dv = (groups_first(t) for t in grads)
    keep, dead = keys_to_keep(key_mask, q)
    if dead is not None:
        grad_out = grad_out.masked_fill(dead[..., None, None, None], 0.0)
    delta = groups_first((grad_out.to(dtype) * out).sum(-1, keepdim=True))
    grad_out, q, k, v = (groups_first(t) for t in (grad_out, q, k, v))

    buffer, second = torch.empty(2, tile_entries(q), dtype=dtype, device=q.device)
    for batch in range(q.shape[0]):
        # Contiguous, so that each product finds its operands as BLAS wants them.
        keys, values = k[batch].to(dtype).contiguous(), v[batch].to(dtype)
        keys_t = keys.transpose(-2, -1).contiguous()  # (G, M, D, L)
        values_t = values.transpose(-2, -1).contiguous()  # (G, M, E, L)
        dk_sum, dv_sum = torch.zeros_like(keys), values.new_zeros(values.shape)
        for tile in tiles(q[batch : batch + 1], num_prefix):
            _, groups, heads, rows = tile
            tile = tile._replace(batch=batch)
            part = (batch, groups, heads, _token_rows(rows, num_prefix))
            queries, grad = stack(q[part].to(dtype)), stack(grad_out[part].to(dtype))

            logits = _fill(bias, tile, buffer, q, keep, num_prefix)
            weights = stack(logits).baddbmm_(queries, stack(keys_t[groups, heads]), alpha=scale)
            weights = softmax_(weights).view(logits.shape)
            if keep is not None:
                weights.masked_fill_(~keep[batch, groups, None, None], 0.0)
            weights = stack(weights)  # (g·m, r, L)
            dlogits = second[: weights.numel()].view_as(weights)
            torch.bmm(grad, stack(values_t[groups, heads]), out=dlogits)
            dlogits.sub_(stack(delta[part])).mul_(weights)

            _add_product(dv_sum[groups, heads], weights.transpose(-2, -1), grad)
            _add_product(dk_sum[groups, heads], dlogits.transpose(-2, -1), queries, scale)
            product = torch.bmm(dlogits, stack(keys[groups, heads])).mul_(scale)
            dq[part] = product.view(q[part].shape)
            if bias_grad and rows.start >= 0:
                bias.accumulate(tile, dlogits.view_as(logits)[..., num_prefix:])
        dk[batch], dv[batch] = dk_sum, dv_sum
    return grads


def keys_to_keep(key_mask: Tensor | None, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return which keys to keep, ``(B, G, L)`` grouped, and ``(B, G)`` where none was to be kept.

    Where no key is left all are kept, so that the softmax is finite; the caller clears the result.
    """
    if key_mask is None:
        return None, None
    mask = key_mask.expand(*q.shape[:2], q.shape[-2])
    dead = ~mask.any(-1)
    return groups_first(mask | dead.unsqueeze(-1)), dead


def _shape(q: Tensor) -> tuple[int, int, int]:
    """Return how many groups, heads and queries a tile has for q ``(B, G, M, L, D)``."""
    groups, heads, length = q.shape[1:4]
    if length <= _MAX_BATCHED:
        entries = max(heads * length**2, 1)
        return max(1, min(groups, _BATCHED_ENTRIES // entries)), heads, length
    rows = min(_MAX_ROWS, _TILE_ENTRIES // length) // _MIN_ROWS * _MIN_ROWS
    rows = min(length, max(_MIN_ROWS, rows))
    return 1, max(1, min(heads, _TILE_ENTRIES // (rows * length))), rows


def tile_entries(q: Tensor) -> int:
    """Return the logits of the largest tile."""
    groups, heads, rows = _shape(q)
    return groups * heads * rows * q.shape[3]


def tiles(q: Tensor, num_prefix: int) -> Iterator[Tile]:
    """Cut the logits of q into tiles; prefix queries, without a bias, have ``rows`` below 0."""
    batch, groups, heads, length = q.shape[:4]
    step_groups, step_heads, step_rows = _shape(q)
    starts = range(0, length - num_prefix, step_rows)
    pieces = [slice(i, min(i + step_rows, length - num_prefix)) for i in starts]
    if num_prefix:
        prefix = range(0, num_prefix, step_rows)
        pieces += [
            slice(i - num_prefix, min(i + step_rows, num_prefix) - num_prefix) for i in prefix
        ]
    for b in range(batch):
        for g in range(0, groups, step_groups):
            for rows in pieces:
                for m in range(0, heads, step_heads):
                    yield Tile(
                        b,
                        slice(g, min(g + step_groups, groups)),
                        slice(m, min(m + step_heads, heads)),
                        rows,
                    )


def _token_rows(rows: slice, num_prefix: int) -> slice:
    """Turn a range of the grid's tokens into one of all tokens."""
    return slice(rows.start + num_prefix, rows.stop + num_prefix)


def _fill(
    bias: TileBias, tile: Tile, buffer: Tensor, q: Tensor, keep: Tensor | None, num_prefix: int
) -> Tensor:
    """Write the bias and the mask of a tile into the buffer: ``(g, m, r, L)``."""
    batch, groups, heads, rows = tile
    length = q.shape[3]
    shape = (
        groups.stop - groups.start, heads.stop - heads.start, rows.stop - rows.start, length
    )  # fmt: skip
    out = buffer[: shape[0] * shape[1] * shape[2] * shape[3]].view(shape)
    if rows.start < 0:
        out.zero_()
    elif num_prefix == 0:
        bias.fill(tile, out)
    else:
        out[..., :num_prefix] = 0.0
        bias.fill(tile, out[..., num_prefix:])
    if keep is not None:
        out.masked_fill_(~keep[batch, groups, None, None], -torch.inf)
    return out


def stack(x: Tensor) -> Tensor:
    """Turn ``(g, m, …, …)`` into ``(g·m, …, …)``."""
    return x.flatten(0, 1)


def _add_product(total: Tensor, left: Tensor, right: Tensor, alpha: float = 1.0) -> None:
    """Add ``alpha · left @ right``, stacked, to ``(g, m, L, X)``."""
    if total.is_contiguous():
        stack(total).baddbmm_(left, right, alpha=alpha)
    else:
        total.add_(torch.bmm(left, right).view(total.shape), alpha=alpha)
