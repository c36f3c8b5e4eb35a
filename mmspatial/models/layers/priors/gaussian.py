"""The Gaussian that each query casts around itself (LocAtViT)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspatial.ops import Positions, cached_table, gaussian_attention, grid_positions

from ..mixed_rotary import MixedRotary
from ..tokens import Grid
from .base import Prior

# Both bounds keep power / (var + eps), and its gradient, inside float16.
_LARGEST_QUOTIENT = 32500
_LOWEST_FLOOR = -6550.0


def gaussian_limits(grid: Grid) -> tuple[float, float]:
    """Return floor and eps of `mmspatial.ops.gaussian_attention` for a training grid."""
    largest = 0.5 * (max(grid) - 1) ** 2
    eps = 0.1
    while largest / eps**2 > _LARGEST_QUOTIENT:
        eps *= 2
    return max(-largest, _LOWEST_FLOOR), eps


def bounded_variance(x: Tensor, grid: Grid) -> Tensor:
    """Squash to between 0 and c, the square of the grid's longer side, so that 0 gives 1.

    ::

        c · sigmoid(x - ln(c - 1));   c · sigmoid(x) where c <= 2
    """
    c = max(grid) ** 2
    return c * torch.sigmoid(x - (math.log(c - 1) if c > 2 else 0.0))


class GaussianPrior(Prior):
    """Weight and variances of a Gaussian, read from each query.

    The gates are linear maps of a head's query, shared by the heads; prefix tokens have none.
    Softplus, sigmoid and all that follows is in at least float32, under autocast too.

    Args:
        head_dim: Width D of a head.
        grid: Rows and columns which the variances are meant for; on other grids they scale with
            the shorter side.
        pooled: Whether training reads the gates from means of 2x2 cells and gives each cell one
            bias, of offsets between cells; evaluation, and a grid with an odd side, does not.
            None for where ``grid`` has at least 32 rows.
        rotary: Turns the queries and keys of the grid once the gates are read; None for nothing.
        impl: See `mmspatial.ops.gaussian_attention`.
    """

    def __init__(
        self,
        head_dim: int,
        grid: Grid,
        *,
        pooled: bool | None = None,
        rotary: MixedRotary | None = None,
        impl: str = 'auto',
    ) -> None:
        super().__init__()
        self.grid = grid
        self.pooled = grid[0] >= 32 if pooled is None else pooled
        self.rotary = rotary
        self.impl = impl
        self.floor, self.eps = gaussian_limits(grid)
        self.to_var = nn.Linear(head_dim, 2)
        self.to_alpha = nn.Linear(head_dim, 1)

    def extra_repr(self) -> str:
        """Show the settings that make this prior differ from its neighbours'."""
        return f'grid={self.grid}, pooled={self.pooled}'

    def gates(self, q: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """Map queries ``(…, D)`` to alpha ``(…)`` and var ``(…, 2)``."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        alpha = F.softplus(self.to_alpha(q).squeeze(-1).to(dtype))
        var = bounded_variance(self.to_var(q).to(dtype), self.grid)
        return alpha, var * (min(grid) / min(self.grid))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Positions,
        num_prefix: int = 0,
        key_mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
    ) -> Tensor:
        """Attend on a grid ``positions``; shapes as in `mmspatial.ops.gaussian_attention`."""
        if isinstance(positions, Tensor):
            raise ValueError('GaussianPrior needs a grid (H, W), got coordinates of tokens')
        grid, queries = positions, q[..., num_prefix:, :]
        if self.pooled and self.training and grid[0] % 2 == grid[1] % 2 == 0:
            cells = queries.unflatten(-2, (grid[0] // 2, 2, grid[1] // 2, 2)).mean((-4, -2))
            alpha, var = self.gates(cells, grid)  # (B, [G,] M, H / 2, W / 2)
            alpha, var = _spread(alpha.unsqueeze(-1)).squeeze(-1), _spread(var)
            positions = cell_positions(*grid, q.device)
        else:
            alpha, var = self.gates(queries, grid)
        if self.rotary is not None:
            q, k = (self.rotary(t, grid, num_prefix) for t in (q, k))
        return gaussian_attention(
            q, k, v, alpha, var, positions, floor=self.floor, eps=self.eps,
            num_prefix=num_prefix, key_mask=key_mask, attn_bias=attn_bias, impl=self.impl,
        )  # fmt: skip


@cached_table
def cell_positions(height: int, width: int, device: torch.device) -> Tensor:
    """Make coordinates ``(1, H·W, 2)`` of the top left token of each token's 2x2 cell."""
    return grid_positions(height, width, device).div(2).floor() * 2


def _spread(cells: Tensor) -> Tensor:
    """Give each token its cell's value: ``(…, H / 2, W / 2, X)`` to ``(…, H·W, X)``."""
    return cells.repeat_interleave(2, -3).repeat_interleave(2, -2).flatten(-3, -2)
