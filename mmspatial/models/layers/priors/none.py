"""No prior: attention of a plain ViT."""

from __future__ import annotations

from torch import Tensor

from mmspatial.ops import Positions, plain_attention

from .base import Prior


class NoPrior(Prior):
    """Attends without regard to where tokens are.

    Args:
        impl: See `mmspatial.ops.plain_attention`.
    """

    def __init__(self, impl: str = 'auto') -> None:
        super().__init__()
        self.impl = impl

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Positions,
        num_prefix: int = 0,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend; shapes as in `mmspatial.ops.plain_attention`."""
        return plain_attention(q, k, v, key_mask=key_mask, impl=self.impl)
