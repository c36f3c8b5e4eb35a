"""Offsets and distances between the queries of a tile and all keys, for `chunked`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ._chunked import Tile
from .positions import combine_offsets


class TileOffsets:
    """How far the keys of a tile are from its queries.

    On a grid an offset along one axis is the same for whole rows or columns of keys: what depends
    on one axis alone then costs H or W numbers for each query instead of H·W.

    Args:
        positions: ``(G or 1, n, 2)``.
        grid: ``(H, W)`` if that is what the positions are of, else None.
    """

    def __init__(self, positions: Tensor, grid: Sequence[int] | None) -> None:
        self._positions = positions
        self.grid = grid
        self._latest: tuple[object, Tensor] = (None, positions)
        self._memory = positions.new_empty(0)

    def axes(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return the offsets of rows and of columns.

        On a grid ``(1, r, H, 1)`` and ``(1, r, 1, W)``, else ``(g or 1, r, n)`` each.
        """
        keys = self._positions
        if self.grid is not None:
            width = self.grid[1]
            y, x = keys[:, tile.rows].unsqueeze(-2).unbind(-1)  # (1, r, 1)
            dy, dx = y - keys[:, ::width, 0], x - keys[:, :width, 1]
            return dy.unsqueeze(-1), dx.unsqueeze(-2)
        if keys.shape[0] > 1:
            keys = keys[tile.groups]
        queries = keys[:, tile.rows].unsqueeze(-2)  # (g, r, 1, 2)
        return queries[..., 0] - keys[:, None, :, 0], queries[..., 1] - keys[:, None, :, 1]

    def distance(self, tile: Tile, metric: str) -> Tensor:
        """Return ``(g or 1, 1, r, n)``, kept for the other heads of the same queries."""
        at = (tile.rows, tile.groups if self._positions.shape[0] > 1 else None)
        if at != self._latest[0]:
            dy, dx = self.axes(tile)
            shape = torch.broadcast_shapes(dy.shape, dx.shape)
            # The same memory for every tile: the first touch of more would cost as much again.
            if self._memory.numel() < math.prod(shape):
                self._memory = dy.new_empty(math.prod(shape))
            out = self._memory[: math.prod(shape)].view(shape)
            combine_offsets(dy, dx, metric, out=out)
            self._latest = at, (out if self.grid is None else out.flatten(-2)).unsqueeze(1)
        return self._latest[1]
