"""`decay_attention` in Triton: its bias for the loop in `mmspatial.ops._flash`."""

from __future__ import annotations

from torch import Tensor

from .._flash import Bias, attend, attend_backward, jit, tl


@jit
def _distance(dy: tl.tensor, dx: tl.tensor, METRIC: tl.constexpr) -> tl.tensor:
    if METRIC == 'manhattan':
        return tl.abs(dy) + tl.abs(dx)
    return tl.sqrt(dy * dy + dx * dx)


@jit
def _bias(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, METRIC: tl.constexpr
) -> tl.tuple:
    return query[0], _distance(dy, dx, METRIC)


@jit
def _terms(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, METRIC: tl.constexpr
) -> tl.tuple:
    return (_distance(dy, dx, METRIC),)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    grid: list[int] | None,
    metric: str,
    scale: float,
    num_prefix: int,
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of the logits."""
    bias = Bias(_bias, option=metric)
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
    grid: list[int] | None,
    metric: str,
    scale: float,
    num_prefix: int,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v, and of ``log_decay`` if ``bias_grad``."""
    bias = (
        Bias(_bias, _terms, num_query_sums=1, option=metric)
        if bias_grad
        else Bias(_bias, option=metric)
    )
    dq, dk, dv, sums, _ = attend_backward(
        grad_out, q, k, v, (log_decay,), positions, key_mask, out, lse, bias, scale, num_prefix
    )
    grad = sums.sum((0, 1, 3, 4)).to(log_decay.dtype) if bias_grad else None
    return dq, dk, dv, grad
