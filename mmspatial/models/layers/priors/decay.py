"""The fixed decay with distance of RMT and EVT."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspatial.ops import Positions, cached_table, decay_attention
from mmspatial.ops.decay_attention import MODES

from .base import Prior


@cached_table
def log_decay_rates(
    num_heads: int, decay_init: float, decay_range: float, device: torch.device
) -> Tensor:
    """Compute the decay of each head, as RMT and EVT set it by hand.

    ::

        log(1 - 2 ** (-decay_init - decay_range · h / M)),   h = 0 .. M-1

    Args:
        num_heads: M.
        decay_init: Exponent of the first head, which decays fastest.
        decay_range: Span of the exponents.
        device: Where the tensor is made.

    Returns:
        ``(M,)`` float32, negative: change of the logit per token of distance.
    """
    heads = torch.arange(num_heads, device=device, dtype=torch.float32)
    return torch.log(1 - 2 ** (-decay_init - decay_range * heads / num_heads))


class DecayPrior(Prior):
    """A fixed decay with distance: Manhattan in RMT, Euclidean in EVT.

    Args:
        num_heads: M.
        metric: See `mmspatial.ops.decay_attention`.
        decay_init: See `log_decay_rates`.
        decay_range: See `log_decay_rates`.
        mode: See `mmspatial.ops.decay_attention`.
        impl: See `mmspatial.ops.decay_attention`.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        metric: str,
        decay_init: float,
        decay_range: float,
        mode: str = 'logit',
        impl: str = 'auto',
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise ValueError(f'decay_mode={mode!r}: expected one of {", ".join(MODES)}')
        self.num_heads = num_heads
        self.metric = metric
        self.decay_init = decay_init
        self.decay_range = decay_range
        self.mode = mode
        self.impl = impl

    def extra_repr(self) -> str:
        """Show the settings that make this prior differ from its neighbours'."""
        return f'{self.metric}, decay_init={self.decay_init}, decay_range={self.decay_range}'

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Positions,
        num_prefix: int = 0,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend; shapes as in `mmspatial.ops.decay_attention`."""
        rates = log_decay_rates(self.num_heads, self.decay_init, self.decay_range, q.device)
        return decay_attention(
            q, k, v, rates, positions, metric=self.metric, num_prefix=num_prefix,
            key_mask=key_mask, mode=self.mode, impl=self.impl,
        )  # fmt: skip
