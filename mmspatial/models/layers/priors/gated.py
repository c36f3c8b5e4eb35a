"""The decay with distance that tokens set themselves (SDT)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspatial.ops import Positions, gated_attention, no_autocast

from .base import Prior
from .decay import log_decay_rates


class GatedPrior(Prior):
    """A Manhattan decay with a learned rate per token and head.

    ::

        gate = log sigmoid(x Wᵀ + b);   rate of a pair = alpha / 2 · (gate_i + gate_j)

    W begins at 0 and b such that every gate is the fixed decay of RMT, so that a fresh model is
    an RMT. Gates are computed in at least float32, under autocast too.

    Args:
        dim: Channels C.
        num_heads: M.
        decay_init: See `log_decay_rates`; of the first values.
        decay_range: See `log_decay_rates`; of the first values.
        impl: See `mmspatial.ops.gated_attention`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        decay_init: float,
        decay_range: float,
        impl: str = 'auto',
    ) -> None:
        super().__init__()
        self.impl = impl
        # No nn.Linear: backbones and users' `init_cfg` give all of those values of their own.
        self.gate_weight = nn.Parameter(torch.zeros(num_heads, dim))
        self.gate_bias = nn.Parameter(torch.empty(num_heads))
        self.alpha = nn.Parameter(torch.ones(num_heads))
        rates = log_decay_rates(num_heads, decay_init, decay_range, torch.device('cpu')).double()
        with torch.no_grad():
            self.gate_bias.copy_(rates - torch.log(-torch.expm1(rates)))  # logit(exp(rates))

    def features(self, x: Tensor) -> tuple[Tensor]:
        """Map tokens ``(B, L, C)`` to gates ``(B, L, M, 1)``, at most 0."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with no_autocast(x.device):
            gate = F.linear(x.to(dtype), self.gate_weight.to(dtype), self.gate_bias.to(dtype))
            return (F.logsigmoid(gate).unsqueeze(-1),)  # (B, L, M, 1)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Positions,
        num_prefix: int,
        key_mask: Tensor | None,
        gates: Tensor,
    ) -> Tensor:
        """Attend; shapes as in `mmspatial.ops.gated_attention`, gates ``(B, [G,] M, L, 1)``."""
        return gated_attention(
            q, k, v, gates[..., num_prefix:, 0], self.alpha, positions, num_prefix=num_prefix,
            key_mask=key_mask, impl=self.impl,
        )  # fmt: skip
