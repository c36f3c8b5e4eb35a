"""The attention layer of every block: projections around a prior and a token layout."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from .conv import DepthwiseConv
from .inplace import add_to_branch
from .layout import Full, Layout
from .packed import packed_parts
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
        self.qkv: nn.Module | None = nn.Linear(dim, 3 * dim)
        self.qk = self.v = None  # Its parts, when fused.
        self.lepe = DepthwiseConv(dim, 5) if lepe else None
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, P + H·W, C)`` to the same shape."""
        num_prefix = x.shape[1] - grid[0] * grid[1]
        qk, v = self._project(x)
        local = None if self.lepe is None else self.lepe(v, grid)
        qk = qk.unflatten(-1, (2 * self.num_heads, -1))  # (B, L, 2M, D)
        if self.rotary:
            qk = apply_rotary(qk, num_prefix)
        q, k = qk.chunk(2, 2)  # (B, L, M, D)
        v = v.unflatten(-1, (self.num_heads, -1))
        features = self.prior.features(x)
        for layout in self.layouts:
            positions, key_mask = layout.positions(grid, x.device)
            split_q, split_k, split_v, *read = (layout.split(t, grid) for t in (q, k, v, *features))
            out = self.prior(split_q, split_k, split_v, positions, num_prefix, key_mask, *read)
            v = layout.merge(out, grid)

        out = v.flatten(-2)  # (B, L, C)
        return self.proj(out if local is None else add_to_branch(local, out))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map ``(B, L, C)`` to queries and keys side by side, ``(B, L, 2C)``, and values."""
        if self.qkv is None:
            return self.qk(x), self.v(x)
        split = self.qkv.out_features // 3 * 2
        if self.lepe is None:
            return self.qkv(x).tensor_split((split,), -1)
        # In two products: the convolution wants its channels dense.
        (qk, v), (qk_bias, v_bias) = (t.tensor_split((split,)) for t in self.qkv.parameters())
        return F.linear(x, qk, qk_bias), F.linear(x, v, v_bias)

    def fuse_for_inference(self) -> None:
        """Give the two products weights of their own."""
        if self.lepe is not None and self.qkv is not None:
            dim = self.qkv.in_features
            self.qk, self.v = packed_parts(self.qkv, (2 * dim, dim))
            self.qkv = None
