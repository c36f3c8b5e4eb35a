"""`gaussian_attention` in Triton: its bias for the loop in `mmspatial.ops._flash`."""

from __future__ import annotations

from torch import Tensor

from .._flash import Bias, attend, attend_backward, jit, tl


@jit
def _squares(dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr) -> tl.tuple:
    FLOOR: tl.constexpr = OPTION[1]
    dy, dx = dy * dy, dx * dx
    if FLOOR is not None:
        dy, dx = tl.minimum(dy, -2.0 * FLOOR), tl.minimum(dx, -2.0 * FLOOR)
    return dy, dx


@jit
def _gaussian(query: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr) -> tl.tensor:
    HALF_LOG2E: tl.constexpr = 0.7213475204444817
    dy, dx = _squares(dy, dx, OPTION)
    b_y = HALF_LOG2E / (query[1] + OPTION[0])
    b_x = HALF_LOG2E / (query[2] + OPTION[0])
    return tl.exp2(-(dy * b_y + dx * b_x))


@jit
def _bias(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr
) -> tl.tuple:
    return query[0], _gaussian(query, dy, dx, OPTION)


@jit
def _terms(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr
) -> tl.tuple:
    """The derivatives of B for alpha and var, the latter but for alpha / 2 / (var + eps)²."""
    b_gaussian = _gaussian(query, dy, dx, OPTION)
    dy, dx = _squares(dy, dx, OPTION)
    return b_gaussian, b_gaussian * dy, b_gaussian * dx


def _inputs(
    alpha: Tensor, var: Tensor, floor: float | None, eps: float
) -> tuple[tuple[Tensor, Tensor, Tensor], Bias]:
    bias = Bias(_bias, _terms, num_query_sums=3, option=(eps, floor))
    return (alpha, var[..., 0], var[..., 1]), bias


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    var: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    grid: list[int] | None,
    floor: float | None,
    eps: float,
    scale: float,
    num_prefix: int,
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of the logits."""
    params, bias = _inputs(alpha, var, floor, eps)
    return attend(q, k, v, params, positions, key_mask, bias, scale, num_prefix)


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    var: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    grid: list[int] | None,
    floor: float | None,
    eps: float,
    scale: float,
    num_prefix: int,
    bias_grad: bool,
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v, alpha and var."""
    params, bias = _inputs(alpha, var, floor, eps)
    dq, dk, dv, sums, _ = attend_backward(
        grad_out, q, k, v, params, positions, key_mask, out, lse, bias, scale, num_prefix
    )
    dvar = sums[..., 1:] * (alpha.float() / 2).unsqueeze(-1) / (var.float() + eps).square()
    return dq, dk, dv, sums[..., 0].to(alpha.dtype), dvar.to(var.dtype)
