"""`gated_attention` in O(N) memory, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._chunked import Tile, attend, attend_backward, groups_first, wide
from .._offsets import TileOffsets
from ..positions import grid_distance

# Entries of the largest table of distances that is worth keeping: 4 MB in float32.
_MAX_ENTRIES = 2**20


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
    bias = _GatedBias(*(t.to(wide(q.dtype)) for t in (gate, alpha, positions)), grid, num_prefix)
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
    bias = _GatedBias(*(t.to(wide(q.dtype)) for t in (gate, alpha, positions)), grid, num_prefix)
    grads = attend_backward(grad_out, q, k, v, key_mask, out, scale, num_prefix, bias, bias_grad)
    return *grads, *(t.to(like.dtype) for t, like in zip(bias.grads(), (gate, alpha), strict=True))


class _GatedBias:
    """``-|alpha_h| / 2 · |g_i + g_j| · distance``; distances are not negative."""

    def __init__(
        self,
        gate: Tensor,
        alpha: Tensor,
        positions: Tensor,
        grid: Sequence[int] | None,
        num_prefix: int,
    ) -> None:
        self._gate = gate
        self._alpha = alpha
        # Contiguous, so that the keys of a row are read as they lie.
        self._rates = groups_first(gate.contiguous() * (alpha.abs() / 2).unsqueeze(-1))
        # As the log of a sigmoid is: |g_i + g_j| is then -g_i - g_j. Not asked of a GPU, which
        # would have to be waited for.
        self._is_negative = gate.is_cpu and bool((gate < 0).all())
        # On a grid no other token is at distance 0: where the shift is large, and the rounding
        # with it, the token itself has all the weight.
        self._is_shifted = self._is_negative and grid is not None and num_prefix == 0
        self._offsets = TileOffsets(positions, grid)
        self._table = _distance_table(positions, grid)
        # Of the sum over all pairs of a token of -sign(g_i + g_j) · distance · dB.
        self._gate_sum = torch.zeros_like(gate)
        self._grouped_sum = groups_first(self._gate_sum)

    def fill(self, tile: Tile, out: Tensor) -> None:
        """Write the bias into ``out``, ``(g, m, r, n)``."""
        queries, keys = self._pairs(tile)
        if self._is_shifted:
            # B - queries, in one pass: what all keys of a query share is lost in its softmax.
            torch.lerp(-queries, keys, self._distance(tile), out=out)
        else:
            torch.add(queries, keys, out=out)
            out.abs_().mul_(-self._distance(tile))

    def accumulate(self, tile: Tile, grad: Tensor) -> None:
        """Add to the sums from which the gradients of gate and alpha follow."""
        grad.mul_(self._distance(tile))
        if not self._is_negative:
            queries, keys = self._pairs(tile)
            grad.mul_((-queries - keys).sign_())
        total = self._grouped_sum[tile.batch, tile.groups, tile.heads]
        total[..., tile.rows] += grad.sum(-1)
        total += grad.sum(-2)

    def grads(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of gate and alpha."""
        half = self._alpha[:, None].abs() / 2
        dalpha = self._alpha.sign() / 2 * (self._gate_sum * self._gate).sum((0, 1, 3))
        return self._gate_sum.mul_(half), dalpha

    def _pairs(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return ``|alpha_h| / 2 · gate`` of the queries and the keys, to be broadcast."""
        rates = self._rates[tile.batch, tile.groups, tile.heads]
        return rates[..., tile.rows, None], rates[..., None, :]

    def _distance(self, tile: Tile) -> Tensor:
        """Return the distances, ``(g or 1, 1, r, n)``."""
        if self._table is None:
            return self._offsets.distance(tile, 'manhattan')
        return self._table[:, None, tile.rows]


def _distance_table(positions: Tensor, grid: Sequence[int] | None) -> Tensor | None:
    """Return the distances of a small grid, ``(1, n, n)``, which calls share; None for others."""
    if grid is None or positions.shape[1] ** 2 > _MAX_ENTRIES:
        return None
    return grid_distance(*grid, 'manhattan', positions.device, positions.dtype)
