"""Between tokens ``(B, L, C)`` and maps ``(B, C, H, W)``.

Both directions are views: a map made from tokens lies in channels-last memory, and a
channels-last map turns back into contiguous tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

Grid = tuple[int, int]


def is_open(*sizes: int) -> bool:
    """Say whether a size is left open, as in the graph of an exported model.

    Nothing may branch on such a size: one graph has to serve all of its values.
    """
    return any(isinstance(size, torch.SymInt) for size in sizes)


def round_up(size: int, multiple: int) -> int:
    """Return the least number from ``size`` on which ``multiple`` divides."""
    # Of open sizes in this form PyTorch knows that they are divisible. Nothing is negative: ONNX
    # rounds quotients towards zero.
    return (size + multiple - 1) // multiple * multiple


def to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """View the grid tokens as a map; prefix tokens are left out.

    Args:
        tokens: ``(B, P + H·W, C)``.
        grid: ``(H, W)``.

    Returns:
        ``(B, C, H, W)``.
    """
    num_prefix = tokens.shape[1] - grid[0] * grid[1]
    if num_prefix:
        tokens = tokens[:, num_prefix:]
    return tokens.unflatten(1, grid).permute(0, 3, 1, 2)  # (B, C, H, W)


def to_tokens(image: Tensor) -> Tensor:
    """View a map ``(B, C, H, W)`` as tokens ``(B, H·W, C)``."""
    return image.permute(0, 2, 3, 1).flatten(1, 2)  # (B, N, C)
