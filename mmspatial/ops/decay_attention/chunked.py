"""`decay_attention` in O(N) memory, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._chunked import Tile, attend, attend_backward, wide
from .._offsets import TileOffsets


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    grid: Sequence[int] | None,
    metric: str,
    scale: float,
    num_prefix: int,
) -> tuple[Tensor, Tensor]:
    """Compute the output; no log-sum-exp. See `_library` for the arguments."""
    bias = _DecayBias(*(t.to(wide(q.dtype)) for t in (log_decay, positions)), grid, metric)
    return attend(q, k, v, key_mask, scale, num_prefix, bias), torch.empty(0, device=q.device)


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    grid: Sequence[int] | None,
    metric: str,
    scale: float,
    num_prefix: int,
    bias_grad: bool,
) -> tuple[Tensor, ...]:
    """Compute the gradients of q, k, v and ``log_decay``."""
    bias = _DecayBias(*(t.to(wide(q.dtype)) for t in (log_decay, positions)), grid, metric)
    grads = attend_backward(grad_out, q, k, v, key_mask, out, scale, num_prefix, bias, bias_grad)
    return *grads, bias.grad.to(log_decay.dtype)


class _DecayBias:
    """A rate per head times the distance."""

    def __init__(
        self, log_decay: Tensor, positions: Tensor, grid: Sequence[int] | None, metric: str
    ) -> None:
        self._rate = log_decay
        self._offsets = TileOffsets(positions, grid)
        self._metric = metric
        self.grad = torch.zeros_like(log_decay)

    def fill(self, tile: Tile, out: Tensor) -> None:
        """Write the bias into ``out``, ``(g, m, r, n)``."""
        distance = self._offsets.distance(tile, self._metric)
        torch.mul(
            distance.expand(len(out), -1, -1, -1), self._rate[tile.heads, None, None], out=out
        )

    def accumulate(self, tile: Tile, grad: Tensor) -> None:
        """Add to the gradient of the rates."""
        distance = self._offsets.distance(tile, self._metric)
        self.grad[tile.heads] += (grad * distance).sum((0, 2, 3))
