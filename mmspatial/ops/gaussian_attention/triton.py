"""`gaussian_attention` in Triton: its bias, for the loop in `mmspatial.ops._flash`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .._flash import Bias, attend, attend_backward, jit, tl


@jit
def _squares(dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr) -> tl.tuple:
    """The squared offsets, at most -2 · floor."""
    FLOOR: tl.constexpr = OPTION[0]
    dy, dx = dy * dy, dx * dx
    if FLOOR is not None:
        dy, dx = tl.minimum(dy, -2.0 * FLOOR), tl.minimum(dx, -2.0 * FLOOR)
    return dy, dx


@jit
def _gaussian(query: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr) -> tl.tensor:
    """The only per-key part of B, and its derivative for alpha."""
    HALF_LOG2E: tl.constexpr = 0.7213475204444817
    dy, dx = _squares(dy, dx, OPTION)
    rate_y = HALF_LOG2E / (query[1] + OPTION[1])
    rate_x = HALF_LOG2E / (query[2] + OPTION[1])
    return tl.exp2(-(dy * rate_y + dx * rate_x))


@jit
def _value(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr
) -> tl.tuple:
    """B, as `Bias.value` wants it."""
    return query[0], _gaussian(query, dy, dx, OPTION)


@jit
def _terms(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr
) -> tl.tuple:
    """The derivatives of B for alpha and var, but for the latter's alpha / 2 / (var + eps)²."""
    gaussian = _gaussian(query, dy, dx, OPTION)
    dy, dx = _squares(dy, dx, OPTION)
    return gaussian, gaussian * dy, gaussian * dx


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    var: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    grid: Sequence[int] | None,
    floor: float | None,
    eps: float,
    scale: float,
    num_prefix: int,
) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp. See `_library` for the arguments."""
    params = alpha, *var.unbind(-1)
    bias = Bias(_value, option=(floor, eps))
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
    grid: Sequence[int] | None,
    floor: float | None,
    eps: float,
    scale: float,
    num_prefix: int,
    bias_grad: bool,
) -> tuple[Tensor, ...]:
    """Compute the gradients of q, k, v and, if ``bias_grad``, of ``alpha`` and ``var``."""
    params = alpha, *var.unbind(-1)
    bias = Bias(_value, _terms, num_query_sums=3, option=(floor, eps))
    *grads, sums, _ = attend_backward(
        grad_out, q, k, v, params, positions, key_mask, out, lse, bias, scale, num_prefix,
        bias_grad,
    )  # fmt: skip
    if not bias_grad:
        return tuple(grads)
    half_alpha = (alpha.float() / 2).unsqueeze(-1)
    grad_var = sums[..., 1:] * half_alpha / (var.float() + eps).square()
    return *grads, sums[..., 0].to(alpha.dtype), grad_var.to(var.dtype)
