"""`decay_attention` in Triton: its bias, for the loop in `mmspatial.ops._flash`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .._flash import Bias, attend, attend_backward, jit, tl


@jit
def _distance(dy: tl.tensor, dx: tl.tensor, METRIC: tl.constexpr) -> tl.tensor:
    """Measure the offsets; the only per-key part of B, and its derivative for the rate."""
    return tl.abs(dy) + tl.abs(dx) if METRIC == 'manhattan' else tl.sqrt(dy * dy + dx * dx)


@jit
def _value(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, METRIC: tl.constexpr
) -> tl.tuple:
    """B, as `Bias.value` wants it."""
    return query[0], _distance(dy, dx, METRIC)


@jit
def _terms(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, METRIC: tl.constexpr
) -> tl.tuple:
    """The derivative of B for ``log_decay``."""
    return (_distance(dy, dx, METRIC),)


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
    """Compute the output and the log-sum-exp. See `_library` for the arguments."""
    bias = Bias(_value, option=metric)
    return attend(q, k, v, (log_decay,), positions, key_mask, bias, scale, num_prefix)


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
    """Compute the gradients of q, k, v and, if ``bias_grad``, of ``log_decay``."""
    bias = Bias(_value, _terms, num_query_sums=1, option=metric)
    *grads, sums, _ = attend_backward(
        grad_out, q, k, v, (log_decay,), positions, key_mask, out, lse, bias, scale, num_prefix,
        bias_grad,
    )  # fmt: skip
    if not bias_grad:
        return tuple(grads)
    return *grads, sums.sum((0, 1, 3, 4)).to(log_decay.dtype)
