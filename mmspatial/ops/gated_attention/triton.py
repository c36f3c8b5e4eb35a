"""`gated_attention` in Triton: its bias for the loop in `mmspatial.ops._flash`."""

from __future__ import annotations

from torch import Tensor

from .._flash import Bias, attend, attend_backward, jit, tl


@jit
def _bias(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr
) -> tl.tuple:
    return -0.5 * tl.abs(query[1]), tl.abs(query[0] + key[0]) * (tl.abs(dy) + tl.abs(dx))


@jit
def _terms(
    query: tl.tuple, key: tl.tuple, dy: tl.tensor, dx: tl.tensor, OPTION: tl.constexpr
) -> tl.tuple:
    """The derivative of B for either gate, but for the factor -abs(alpha) / 2."""
    gates = query[0] + key[0]
    dist = tl.abs(dy) + tl.abs(dx)
    return (tl.where(gates > 0, dist, tl.where(gates < 0, -dist, 0.0)),)


_BIAS = Bias(_bias, _terms, _terms, num_query_sums=1, num_key_sums=1)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    alpha: Tensor,
    positions: Tensor,
    key_mask: Tensor | None,
    grid: list[int] | None,
    scale: float,
    num_prefix: int,
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of the logits."""
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
    grid: list[int] | None,
    scale: float,
    num_prefix: int,
    bias_grad: bool,
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v, gate and alpha."""
    dq, dk, dv, query_sums, key_sums = attend_backward(
        grad_out, q, k, v, (gate, alpha), positions, key_mask, out, lse, _BIAS, scale, num_prefix
    )
    # B is -abs(alpha) / 2 times sign(g_i + g_j) · dist · (g_i + g_j): a part for each gate.
    sums = (query_sums + key_sums)[..., 0] / -2
    rate = alpha.float()
    dgate = sums * rate.abs()[:, None]
    dalpha = (sums * gate).sum((0, 1, 3)) * rate.sign()
    return dq, dk, dv, dgate.to(gate.dtype), dalpha.to(alpha.dtype)
