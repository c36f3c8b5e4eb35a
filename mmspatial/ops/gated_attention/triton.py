"""`gated_attention` in Triton: its bias, for the loop in `mmspatial.ops._flash`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .._flash import Bias, attend, attend_backward, jit, tl


@jit
def _value(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr
) -> tl.tuple:
    """B, as `Bias.value` wants it."""
    return -0.5 * tl.abs(query[1]), tl.abs(query[0] + key[0]) * (tl.abs(dy) + tl.abs(dx))


@jit
def _terms(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr
) -> tl.tuple:
    """The derivative of B for the gate of either token, but for the factor -abs(alpha) / 2."""
    gates = query[0] + key[0]
    dist = tl.abs(dy) + tl.abs(dx)
    return (tl.where(gates > 0, dist, tl.where(gates < 0, -dist, 0.0)),)


_BIAS = Bias(_value, _terms, _terms, num_query_sums=1, num_key_sums=1)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    alpha: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    grid: Sequence[int] | None,
    scale: float,
    num_prefix: int,
) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp. See `_library` for the arguments."""
    return attend(q, k, v, (gate, alpha), positions, key_mask, _BIAS, scale, num_prefix)


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    alpha: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    grid: Sequence[int] | None,
    scale: float,
    num_prefix: int,
    bias_grad: bool,
) -> tuple[Tensor, ...]:
    """Compute the gradients of q, k, v and, if ``bias_grad``, of ``gate`` and ``alpha``."""
    *grads, query_sums, key_sums = attend_backward(
        grad_out, q, k, v, (gate, alpha), positions, key_mask, out, lse, _BIAS, scale, num_prefix,
        bias_grad,
    )  # fmt: skip
    if not bias_grad:
        return tuple(grads)
    # B is -abs(alpha) / 2 · term · (g_i + g_j): a part for each of the two gates.
    sums = (query_sums + key_sums)[..., 0] / -2
    rate = alpha.float()
    grad_alpha = (sums * gate).sum((0, 1, 3)) * rate.sign()
    return *grads, (sums * rate.abs()[:, None]).to(gate.dtype), grad_alpha.to(alpha.dtype)
