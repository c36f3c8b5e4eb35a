"""`gated_attention` in O(N) memory, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._chunked import Tile, attend, attend_backward, groups_first, wide
from .._offsets import TileOffsets


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    alpha: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    grid: Sequence[int] | None,
    scale: float,
    num_prefix: int,
) -> tuple[Tensor, Tensor]:
    """Compute the output; no log-sum-exp. See `_library` for the arguments."""
    bias = _GatedBias(*(t.to(wide(q.dtype)) for t in (gate, alpha, positions)), grid)
    return attend(q, k, v, key_mask, scale, num_prefix, bias), torch.empty(0, device=q.device)


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    alpha: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    grid: Sequence[int] | None,
    scale: float,
    num_prefix: int,
    bias_grad: bool,
) -> tuple[Tensor, ...]:
    """Compute the gradients of q, k, v, ``gate`` and ``alpha``."""
    bias = _GatedBias(*(t.to(wide(q.dtype)) for t in (gate, alpha, positions)), grid)
    grads = attend_backward(grad_out, q, k, v, key_mask, out, scale, num_prefix, bias, bias_grad)
    return *grads, *(t.to(like.dtype) for t, like in zip(bias.grads(), (gate, alpha), strict=True))


class _GatedBias:
    """``-|alpha_h| / 2 · |g_i + g_j| · distance``; distances are not negative."""

    def __init__(
        self, gate: Tensor, alpha: Tensor, positions: Tensor, grid: Sequence[int] | None
    ) -> None:
        self._gate = gate
        self._grouped_gate = groups_first(gate)  # (B, G, M, n)
        self._alpha = alpha
        self._offsets = TileOffsets(positions, grid)
        # Of the sum over all pairs of a token of sign(g_i + g_j) · distance · dB.
        self._gate_sum = torch.zeros_like(gate)
        self._grouped_sum = groups_first(self._gate_sum)

    def fill(self, tile: Tile, out: Tensor) -> None:
        """Write the bias into ``out``, ``(g, m, r, n)``."""
        rate = self._alpha[tile.heads, None, None].abs() * -0.5
        keys = self._grouped_gate[tile.batch, tile.groups, tile.heads] * rate.squeeze(-1)
        torch.add(keys[..., tile.rows, None], keys[..., None, :], out=out)
        out.abs_().mul_(-self._offsets.distance(tile, 'manhattan'))

    def accumulate(self, tile: Tile, grad: Tensor) -> None:
        """Add to the sums from which the gradients of gate and alpha follow."""
        gate = self._grouped_gate[tile.batch, tile.groups, tile.heads]
        pairs = (gate[..., tile.rows, None] + gate[..., None, :]).sign_()
        pairs.mul_(self._offsets.distance(tile, 'manhattan')).mul_(grad)
        total = self._grouped_sum[tile.batch, tile.groups, tile.heads]
        total[..., tile.rows] += pairs.sum(-1)
        total += pairs.sum(-2)

    def grads(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of gate and alpha."""
        half = self._alpha[:, None] / 2
        dalpha = -0.5 * self._alpha.sign() * (self._gate_sum * self._gate).sum((0, 1, 3))
        return self._gate_sum.mul_(-half.abs()), dalpha
