"""`gaussian_attention` in O(N) memory, on any device.

On a grid the Gaussian is a product of a factor per row and one per column of keys, which spares
most of its exponentials and all of their memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._chunked import LEAST_EXPONENT, Tile, attend, attend_backward, groups_first, wide
from .._offsets import TileOffsets


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    var: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    grid: Sequence[int] | None,
    floor: float | None,
    eps: float,
    scale: float,
    num_prefix: int,
) -> tuple[Tensor, Tensor]:
    """Compute the output; no log-sum-exp. See `_library` for the arguments."""
    bias = _bias(q, alpha, var, positions, grid, floor, eps)
    return attend(q, k, v, key_mask, scale, num_prefix, bias), torch.empty(0, device=q.device)


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    var: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    grid: Sequence[int] | None,
    floor: float | None,
    eps: float,
    scale: float,
    num_prefix: int,
    bias_grad: bool,
) -> tuple[Tensor, ...]:
    """Compute the gradients of q, k, v, ``alpha`` and ``var``."""
    bias = _bias(q, alpha, var, positions, grid, floor, eps)
    grads = attend_backward(grad_out, q, k, v, key_mask, out, scale, num_prefix, bias, bias_grad)
    return *grads, bias.alpha_grad.to(alpha.dtype), bias.var_grad.to(var.dtype)


def _bias(
    q: Tensor,
    alpha: Tensor,
    var: Tensor,
    positions: Tensor,
    grid: Sequence[int] | None,
    floor: float | None,
    eps: float,
) -> _GaussianBias:
    alpha, var, positions = (t.to(wide(q.dtype)) for t in (alpha, var, positions))
    kind = _PairwiseGaussianBias if grid is None else _SeparableGaussianBias
    return kind(alpha, var + eps, TileOffsets(positions, grid), floor)


class _GaussianBias:
    """What both forms share: the tensors, and the powers of the offsets."""

    def __init__(
        self, alpha: Tensor, width: Tensor, offsets: TileOffsets, floor: float | None
    ) -> None:
        self._alpha, self._width = groups_first(alpha), groups_first(width)
        self._offsets = offsets
        self._floor = floor
        self.alpha_grad = torch.zeros_like(alpha)
        self.var_grad = torch.zeros_like(width)

    def _power(self, offset: Tensor) -> Tensor:
        power = offset.square().mul_(-0.5)
        return power if self._floor is None else power.clamp_(min=self._floor)

    def _store(self, tile: Tile, alpha: Tensor, var_y: Tensor, var_x: Tensor) -> None:
        """Write the gradients of the tile's queries, ``(g, m, r)`` each."""
        groups_first(self.alpha_grad)[_queries(tile)] = alpha
        var = groups_first(self.var_grad)[_queries(tile)]  # (g, m, r, 2)
        var[..., 0], var[..., 1] = var_y, var_x


def _queries(tile: Tile) -> tuple[int, slice, slice, slice]:
    """Index what is kept per query, ``(B, G, M, n, …)``."""
    return tile.batch, tile.groups, tile.heads, tile.rows


class _SeparableGaussianBias(_GaussianBias):
    """On a grid: ``alpha · gy · gx`` with gy of the key's row, gx of its column."""

    def fill(self, tile: Tile, out: Tensor) -> None:
        """Write the bias into ``out``, ``(g, m, r, n)``."""
        dy, dx = self._offsets.axes(tile)
        self._powers = self._power(dy.squeeze(-1)), self._power(dx.squeeze(-2))  # (1, r, H or W)
        width = self._width[_queries(tile)].unsqueeze(-2)  # (g, m, r, 1, 2)
        # Their product, too, is to be above what is slow to multiply.
        self._gy, self._gx = (
            (power / width[..., axis]).clamp_(min=LEAST_EXPONENT / 2).exp_()
            for axis, power in enumerate(self._powers)
        )  # (g, m, r, H or W)
        self._weighted_gy = self._gy * self._alpha[_queries(tile)].unsqueeze(-1)
        out = out.unflatten(-1, tuple(self._offsets.grid))
        torch.mul(self._weighted_gy.unsqueeze(-1), self._gx.unsqueeze(-2), out=out)

    def accumulate(self, tile: Tile, grad: Tensor) -> None:
        """Write the gradients of the tile's queries."""
        grad = grad.unflatten(-1, tuple(self._offsets.grid))  # (g, m, r, H, W)
        dgy = (grad @ self._gx.unsqueeze(-1)).squeeze(-1)  # without alpha
        dgx = (self._weighted_gy.unsqueeze(-2) @ grad).squeeze(-2)
        width = self._width[_queries(tile)]
        power_y, power_x = self._powers
        self._store(
            tile,
            (dgy * self._gy).sum(-1),
            (dgy * self._weighted_gy * power_y).sum(-1) / -width[..., 0].square(),
            (dgx * self._gx * power_x).sum(-1) / -width[..., 1].square(),
        )


class _PairwiseGaussianBias(_GaussianBias):
    """Anywhere: an exponential for each pair."""

    def fill(self, tile: Tile, out: Tensor) -> None:
        """Write the bias into ``out``, ``(g, m, r, n)``."""
        width = self._width[_queries(tile)].unsqueeze(-2)  # (g, m, r, 1, 2)
        power_y, power_x = self._powers(tile)
        torch.div(power_y, width[..., 0], out=out)
        out.addcdiv_(power_x, width[..., 1]).clamp_(min=LEAST_EXPONENT).exp_()
        out.mul_(self._alpha[_queries(tile)].unsqueeze(-1))

    def accumulate(self, tile: Tile, grad: Tensor) -> None:
        """Write the gradients of the tile's queries."""
        width = self._width[_queries(tile)]
        power_y, power_x = self._powers(tile)
        exponent = power_y / width[..., 0, None] + power_x / width[..., 1, None]
        grad = exponent.clamp_(min=LEAST_EXPONENT).exp_().mul_(grad)
        alpha_grad = grad.sum(-1)
        grad.mul_(self._alpha[_queries(tile)].unsqueeze(-1))
        self._store(
            tile,
            alpha_grad,
            (grad * power_y).sum(-1) / -width[..., 0].square(),
            (grad * power_x).sum(-1) / -width[..., 1].square(),
        )

    def _powers(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return the powers of the offsets of rows and columns, ``(g or 1, 1, r, n)`` each."""
        dy, dx = self._offsets.axes(tile)
        return self._power(dy).unsqueeze(1), self._power(dx).unsqueeze(1)
