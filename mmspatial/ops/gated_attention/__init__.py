"""Attention whose decay with distance depends on what the two tokens hold (SDT)."""

from __future__ import annotations

from torch import Tensor

from .._checks import check_attention
from .._dispatch import Option, run
from .._library import Least, call, define_attention, pays, why_not
from ..positions import Positions
from .reference import gated_attention_reference

_OP = define_attention('gated_attention', ['gate', 'alpha'], [])
# Less than for other ops, as the bias takes one pass instead of six.
_LEAST, _LEAST_WITH_GRAD = Least(1, 80_000), Least(49, 300_000)


def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    alpha: Tensor,
    positions: Positions,
    *,
    scale: float | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    impl: str = 'auto',
) -> Tensor:
    """Attend with a penalty that grows with distance, at a rate that each pair of tokens sets.

    ::

        O = softmax(scale · Q Kᵀ + B) V
        B[i, j] = -|alpha_h / 2 · (gate_i + gate_j) · (|dy| + |dx|)|

    Softmax and bias are computed in at least float32. Fused implementations hold no ``n x n``
    maps; see the README beside this for which one runs.

    Args:
        q: Queries ``(B, [G,] M, L, D)`` with L = P + n.
        k: Keys, shaped like ``q``.
        v: Values ``(B, [G,] M, L, E)``.
        gate: ``(B, [G,] M, n)``, the log of each token's share that a step leaves, at most 0 as
            a rule.
        alpha: ``(M,)``, a factor per head.
        positions: Grid ``(H, W)`` with n = H·W row-major tokens, the same for all groups; or
            coordinates ``(G or 1, n, 2)`` in tokens, the row first.
        scale: Factor on the products; None for D**-0.5.
        num_prefix: P tokens in front (class token, registers) that have no position: B is 0 in
            their rows and columns.
        key_mask: Bool, broadcastable to ``(B, [G,] L)``; False for keys that nobody attends to.
            A query left without any key gives zeros.
        impl: ``'auto'``, ``'reference'``, ``'chunked'``, or ``'triton'``.

    Returns:
        ``(B, [G,] M, L, E)`` in the dtype of ``v``.

    Raises:
        ValueError: If a word or a shape does not fit; the message names it.
        NotImplementedError: If the implementation asked for cannot run; the message says why.

    References:
        SDT (arXiv 2508.09525), without released code. Checked against a loop over tokens, and
        against `mmspatial.ops.decay_attention`, which it equals where all gates are the same.

    Example:
        >>> import torch
        >>> q = k = v = torch.randn(1, 2, 12, 16)
        >>> gate = torch.nn.functional.logsigmoid(torch.randn(1, 2, 12))
        >>> gated_attention(q, k, v, gate, torch.ones(2), (3, 4)).shape
        torch.Size([1, 2, 12, 16])
    """
    check_attention(q, k, v, positions, num_prefix, key_mask)
    per_token = (*q.shape[:-2], q.shape[-2] - num_prefix)
    if gate.shape != per_token:
        raise ValueError(f'gate must be {per_token}, got {tuple(gate.shape)}')
    if alpha.shape != (q.shape[-3],):
        raise ValueError(
            f'alpha must be ({q.shape[-3]},), a number per head, got {tuple(alpha.shape)}'
        )
    bias = {'scale': scale, 'num_prefix': num_prefix, 'key_mask': key_mask}

    def fused(impl: str) -> Option:
        def attend() -> Tensor:
            return call(_OP, impl, q, k, v, [gate, alpha], positions, options=[], **bias)

        return Option(
            attend,
            lambda: why_not(impl, q, v, positions),
            lambda: pays(impl, q, _LEAST, _LEAST_WITH_GRAD),
        )

    return run('gated_attention', impl, q, {
        'triton': fused('triton'),
        'chunked': fused('chunked'),
        'reference': Option(
            lambda: gated_attention_reference(q, k, v, gate, alpha, positions, **bias)
        ),
    })  # fmt: skip
