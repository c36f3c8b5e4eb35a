"""The attention layer of every block: projections around a prior and a token layout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .conv import DepthwiseConv
from .layout import Full, Layout
from .position import apply_rotary
from .priors import Prior
from .tokens import Grid


class SpatialAttention(nn.Module):
    """Multi-head self-attention with a spatial prior.

    With several layouts the layer attends once in each, with the same q and k; the values of the
    next pass are the outputs of the one before. Rows, then columns is RMT's decomposed form.

    Args:
        dim: Channels C.
        num_heads: Heads M, which divide C.
        prior: Attends, see `mmspatial.models.layers.priors`.
        layouts: Token layouts, one per pass.
        rotary: Whether to turn q and k by RMT's rotary encoding.
        lepe: Whether to add a 5x5 depthwise convolution of the values (local enhancement).

    Raises:
        ValueError: If the heads do not divide the channels, or the head width is odd with rotary.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        prior: Prior,
        *,
        layouts: Sequence[Layout] = (Full(),),
        rotary: bool = False,
        lepe: bool = False,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f'{dim} channels cannot be divided into {num_heads} heads')
        if rotary and dim // num_heads % 2:
            raise ValueError(f'rotary needs an even head width, got {dim // num_heads}')
        self.num_heads = num_heads
        self.prior = prior
        self.layouts = tuple(layouts)
        self.rotary = rotary
        self.qkv = nn.Linear(dim, 3 * dim)
        self.lepe = DepthwiseConv(dim, 5) if lepe else None
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, P + H·W, C)`` to the same shape."""
        num_prefix = x.shape[1] - grid[0] * grid[1]
        q, k, v = self.qkv(x).chunk(3, -1)
        local = None if self.lepe is None else self.lepe(v, grid)

        q, k, v = (t.unflatten(-1, (self.num_heads, -1)) for t in (q, k, v))  # (B, L, M, D)
        if self.rotary:
            q, k = apply_rotary(q, num_prefix), apply_rotary(k, num_prefix)
        features = self.prior.features(x)
        for layout in self.layouts:
            positions, key_mask = layout.positions(grid, x.device)
            split_q, split_k, split_v, *read = (layout.split(t, grid) for t in (q, k, v, *features))
            out = self.prior(split_q, split_k, split_v, positions, num_prefix, key_mask, *read)
            v = layout.merge(out, grid)

        out = v.flatten(-2)  # (B, L, C)
        return self.proj(out if local is None else out + local)
