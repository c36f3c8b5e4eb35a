"""Token coordinates and the distances between them."""

from __future__ import annotations

import torch
from torch import Tensor

from ._tables import cached_table

Positions = tuple[int, int] | Tensor
METRICS = ('manhattan', 'euclidean')


@cached_table
def grid_positions(height: int, width: int, device: torch.device) -> Tensor:
    """Make the coordinates of a row-major token grid.

    Args:
        height: Rows H of the grid.
        width: Columns W of the grid.
        device: Where the tensor is made.

    Returns:
        ``(1, H·W, 2)`` float32, the row first.
    """
    rows = torch.arange(height, device=device, dtype=torch.float32)
    cols = torch.arange(width, device=device, dtype=torch.float32)
    return torch.cartesian_prod(rows, cols).view(1, height * width, 2)


def pairwise_distance(positions: Tensor, metric: str) -> Tensor:
    """Measure the distance between all tokens of each group.

    Args:
        positions: ``(G, n, 2)`` coordinates in tokens.
        metric: ``'manhattan'`` (|dy| + |dx|) or ``'euclidean'`` (sqrt(dy² + dx²)).

    Returns:
        ``(G, n, n)`` in the dtype of ``positions``.
    """
    dy, dx = (positions.unsqueeze(-2) - positions.unsqueeze(-3)).unbind(-1)  # (G, n, n)
    return combine_offsets(dy, dx, metric)


def combine_offsets(dy: Tensor, dx: Tensor, metric: str, out: Tensor | None = None) -> Tensor:
    """Turn offsets of rows and of columns, broadcastable, into distances; see `METRICS`."""
    if metric == 'manhattan':
        return torch.add(dy.abs(), dx.abs(), out=out)
    if metric == 'euclidean':
        return torch.add(dy.square(), dx.square(), out=out).sqrt_()
    raise ValueError(f'unknown metric {metric!r}: expected one of {", ".join(METRICS)}')


@cached_table
def grid_distance(
    height: int, width: int, metric: str, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Measure the distances on a grid: `pairwise_distance` of `grid_positions`, cached."""
    return pairwise_distance(grid_positions(height, width, device).to(dtype), metric)


def distance(
    positions: Positions, metric: str, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Measure distances for either form in which an op takes its positions.

    Args:
        positions: A grid ``(H, W)``, or ``(G, n, 2)`` coordinates in tokens.
        metric: See `pairwise_distance`.
        device: Where the result is wanted.
        dtype: In which to compute.

    Returns:
        ``(G, n, n)``, with G = 1 for a grid.
    """
    if not isinstance(positions, Tensor):
        return grid_distance(*positions, metric, device, dtype)
    if is_fixed(positions):
        return _distance_of(positions, positions._version, metric, device, dtype)
    return pairwise_distance(positions.to(device=device, dtype=dtype), metric)


def is_fixed(positions: Tensor) -> bool:
    """Say whether a tensor, with its version, can stand for its values in a cached table."""
    capturing = torch.compiler.is_compiling()
    return not (capturing or positions.requires_grad or positions.is_inference())


@cached_table
def _distance_of(
    positions: Tensor, version: int, metric: str, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Measure distances once for a tensor as it is; ``version`` changes when it is written to."""
    return pairwise_distance(positions.to(device=device, dtype=dtype), metric)
