"""Attention whose logits fall with the distance between tokens (RMT, EVT)."""

from __future__ import annotations

from torch import Tensor

from .._checks import check_attention
from .._dispatch import Option, run
from .._library import call, define_attention, pays, why_not
from ..positions import METRICS, Positions
from . import table
from .reference import decay_attention_reference

MODES = ('logit', 'post')
_OP = define_attention('decay_attention', ['log_decay'], ['str metric'])


def decay_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    positions: Positions,
    *,
    metric: str = 'manhattan',
    scale: float | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    mode: str = 'logit',
    impl: str = 'auto',
) -> Tensor:
    """Attend with a penalty that grows with distance, at a rate of its own for each head.

    ::

        O = softmax(scale · Q Kᵀ + B) V,   B[i, j] = log_decay_h · dist(i, j)       mode='logit'
        O = (softmax(scale · Q Kᵀ) ∘ exp(B)) V                                      mode='post'

    Softmax and bias are computed in at least float32. Fused implementations hold no ``n x n``
    maps; see the README beside this for which one runs.

    Args:
        q: Queries ``(B, [G,] M, L, D)`` with L = P + n.
        k: Keys, shaped like ``q``.
        v: Values ``(B, [G,] M, L, E)``.
        log_decay: ``(M,)``, the change of the logit per token of distance, at most 0.
        positions: Grid ``(H, W)`` with n = H·W row-major tokens, the same for all groups; or
            coordinates ``(G or 1, n, 2)`` in tokens, the row first.
        metric: ``'manhattan'`` or ``'euclidean'``.
        scale: Factor on the products; None for D**-0.5.
        num_prefix: P tokens in front (class token, registers) that have no position: B is 0 in
            their rows and columns.
        key_mask: Bool, broadcastable to ``(B, [G,] L)``; False for keys that nobody attends to.
            A query left without any key gives zeros.
        mode: ``'logit'``, which released RMT weights were trained with, or ``'post'``, the
            formula that RMT's paper prints.
        impl: ``'auto'``, ``'reference'``, ``'chunked'``, ``'table'``, or ``'triton'``.

    Returns:
        ``(B, [G,] M, L, E)`` in the dtype of ``v``.

    Raises:
        ValueError: If a word or a shape does not fit; the message names it.
        NotImplementedError: If the implementation asked for cannot run; the message says why.

    References:
        RMT (arXiv 2309.11523), EVT (arXiv 2604.18549). Checked against a loop over tokens, and
        through `mmspatial.models.RMT` against numbers of the released implementation.

    Example:
        >>> import torch
        >>> q = k = v = torch.randn(1, 2, 12, 16)
        >>> decay_attention(q, k, v, torch.tensor([-1.0, -0.1]), (3, 4)).shape
        torch.Size([1, 2, 12, 16])
    """
    if metric not in METRICS:
        raise ValueError(f'unknown metric {metric!r}: expected one of {", ".join(METRICS)}')
    if mode not in MODES:
        raise ValueError(f'unknown mode {mode!r}: expected one of {", ".join(MODES)}')
    check_attention(q, k, v, positions, num_prefix, key_mask)
    if log_decay.shape != (q.shape[-3],):
        raise ValueError(
            f'log_decay must be ({q.shape[-3]},), a number per head, got {tuple(log_decay.shape)}'
        )
    bias = {'scale': scale, 'num_prefix': num_prefix, 'key_mask': key_mask}

    def fused(impl: str) -> Option:
        def attend() -> Tensor:
            return call(_OP, impl, q, k, v, [log_decay], positions, options=[metric], **bias)

        def why() -> str | None:
            return _why_not_mode(mode) or why_not(impl, q, v, positions)

        return Option(attend, why, lambda: pays(impl, q))

    def by_table() -> Tensor:
        return table.decay_attention_table(q, k, v, log_decay, positions, metric=metric, **bias)

    def why_no_table() -> str | None:
        return _why_not_mode(mode) or table.why_not(q, k, v, log_decay, positions, key_mask)

    def reference() -> Tensor:
        return decay_attention_reference(
            q, k, v, log_decay, positions, metric=metric, mode=mode, **bias
        )

    return run('decay_attention', impl, q, {
        'triton': fused('triton'),
        'table': Option(by_table, why_no_table, lambda: table.pays(q, v, positions)),
        'chunked': fused('chunked'),
        'reference': Option(reference),
    })  # fmt: skip


def _why_not_mode(mode: str) -> str | None:
    """Return why nothing but the reference runs in this mode, or None."""
    return None if mode == 'logit' else "mode='post' has the reference only"
