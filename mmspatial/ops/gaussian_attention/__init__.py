"""Attention with a Gaussian around each query, of its own width and weight (LocAtViT)."""

from __future__ import annotations

from torch import Tensor

from .._checks import check_attention
from .._dispatch import Option, run
from .._library import call, define_attention, pays, why_not
from ..positions import Positions
from .reference import gaussian_attention_reference

_OP = define_attention('gaussian_attention', ['alpha', 'var'], ['float? floor', 'float eps'])


def gaussian_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    var: Tensor,
    positions: Positions,
    *,
    floor: float | None = None,
    eps: float = 0.1,
    scale: float | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    impl: str = 'auto',
) -> Tensor:
    """Attend with a bonus for keys near the query, of a reach that each query chooses.

    ::

        O = softmax(scale · Q Kᵀ + B + attn_bias) V
        B[i, j] = alpha_i · exp(sum_a max(-d_a² / 2, floor) / (var_ia + eps))

    with d_a the offset between i and j along axis a (rows, columns). On a grid B is separable,
    a product of a factor per row and one per column, floor included.

    Softmax and bias are computed in at least float32. Fused implementations hold no ``n x n``
    maps; see the README beside this for which one runs.

    Args:
        q: Queries ``(B, [G,] M, L, D)`` with L = P + n.
        k: Keys, shaped like ``q``.
        v: Values ``(B, [G,] M, L, E)``.
        alpha: ``(B, [G,] M, n)``, the bonus of a token to itself.
        var: ``(B, [G,] M, n, 2)``, variances in tokens², at least 0, that of the rows first.
        positions: Grid ``(H, W)`` with n = H·W row-major tokens, the same for all groups; or
            coordinates ``(G or 1, n, 2)`` in tokens, the row first.
        floor: Least value of ``-d_a² / 2``, at most 0; None for none.
        eps: Added to the variances.
        scale: Factor on the products; None for D**-0.5.
        num_prefix: P tokens in front (class token, registers) that have no position: B is 0 in
            their rows and columns.
        key_mask: Bool, broadcastable to ``(B, [G,] L)``; False for keys that nobody attends to.
            A query left without any key gives zeros.
        attn_bias: Further logits, broadcastable to ``(B, [G,] M, L, L)``: a window's table.
        impl: ``'auto'``, ``'reference'``, ``'chunked'``, or ``'triton'``.

    Returns:
        ``(B, [G,] M, L, E)`` in the dtype of ``v``.

    Raises:
        ValueError: If a shape or a number does not fit; the message names it.
        NotImplementedError: If the implementation asked for cannot run; the message says why.

    References:
        LocAtViT (arXiv 2603.04892). Checked against a loop over tokens, and through
        `mmspatial.models.LocAtViT` against numbers of the released implementation.

    Example:
        >>> import torch
        >>> q = k = v = torch.randn(1, 2, 12, 16)
        >>> alpha, var = torch.ones(1, 2, 12), torch.ones(1, 2, 12, 2)
        >>> gaussian_attention(q, k, v, alpha, var, (3, 4)).shape
        torch.Size([1, 2, 12, 16])
    """
    check_attention(q, k, v, positions, num_prefix, key_mask)
    per_query = (*q.shape[:-2], q.shape[-2] - num_prefix)
    if alpha.shape != per_query or var.shape != (*per_query, 2):
        raise ValueError(
            f'alpha must be {per_query} and var {(*per_query, 2)}, '
            f'got {tuple(alpha.shape)} and {tuple(var.shape)}'
        )
    if floor is not None and floor > 0:
        raise ValueError(f'floor={floor}: it bounds -d² / 2 from below, so it is at most 0')
    if eps <= 0:
        raise ValueError(f'eps={eps}: it keeps variances away from 0, so it is above 0')
    bias = {'scale': scale, 'num_prefix': num_prefix, 'key_mask': key_mask}

    def fused(impl: str) -> Option:
        def why() -> str | None:
            if attn_bias is not None:
                return 'attn_bias has the reference only'
            return why_not(impl, q, v, positions)

        def attend() -> Tensor:
            options = [floor, eps]
            return call(_OP, impl, q, k, v, [alpha, var], positions, options=options, **bias)

        return Option(attend, why, lambda: pays(impl, q))

    def reference() -> Tensor:
        return gaussian_attention_reference(
            q, k, v, alpha, var, positions, floor=floor, eps=eps, attn_bias=attn_bias, **bias
        )

    return run('gaussian_attention', impl, q, {
        'triton': fused('triton'),
        'chunked': fused('chunked'),
        'reference': Option(reference),
    })  # fmt: skip
