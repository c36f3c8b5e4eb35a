"""Between tokens ``(B, L, C)`` and maps ``(B, C, H, W)``.

Both directions are views: a map made from tokens lies in channels-last memory, and a
channels-last map turns back into contiguous tokens.
"""

from __future__ import annotations

from torch import Tensor

Grid = tuple[int, int]


def to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """View the grid tokens as a map; prefix tokens are left out.

    Args:
        tokens: ``(B, P + H·W, C)``.
        grid: ``(H, W)``.

    Returns:
        ``(B, C, H, W)``.
    """
    num_prefix = tokens.shape[1] - grid[0] * grid[1]
    return tokens[:, num_prefix:].unflatten(1, grid).permute(0, 3, 1, 2)  # (B, C, H, W)


def to_tokens(image: Tensor) -> Tensor:
    """View a map ``(B, C, H, W)`` as tokens ``(B, H·W, C)``."""
    return image.permute(0, 2, 3, 1).flatten(1, 2)  # (B, N, C)
