"""The feed-forward network of a block."""

from __future__ import annotations

from torch import Tensor, nn

from .conv import ResidualConv
from .inplace import gelu
from .tokens import Grid


class FFN(nn.Module):
    """Linear, GELU, Linear; with ``conv`` a residual 3x3 depthwise convolution in between (RMT).

    Args:
        dim: Channels C.
        ratio: Hidden width over C.
        conv: Whether to have the convolution.
    """

    def __init__(self, dim: int, ratio: float, *, conv: bool = False) -> None:
        super().__init__()
        hidden = int(dim * ratio)
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = ResidualConv(hidden, 3) if conv else None
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, P + H·W, C)`` to the same shape."""
        x = gelu(self.fc1(x))
        if self.dwconv is not None:
            x = self.dwconv(x, grid)
        return self.fc2(x)
