"""Attention that does not know where tokens are: a plain ViT's."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ._checks import check_attention
from ._dispatch import Option, run
from ._softmax import exact_logits, masked_softmax


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, impl: str = 'auto'
) -> Tensor:
    """Attend without a bias, as PyTorch's own attention does.

    ::

        O = softmax(D**-0.5 · Q Kᵀ) V

    Softmax is computed in at least float32; only the reference holds ``L x L`` weights.

    Args:
        q: Queries ``(B, [G,] M, L, D)``.
        k: Keys, shaped like ``q``.
        v: Values ``(B, [G,] M, L, E)``.
        key_mask: Bool, broadcastable to ``(B, [G,] L)``; False for keys that nobody attends to.
            A query left without any key gives zeros.
        impl: ``'auto'``, which is PyTorch's own attention, or ``'reference'``.

    Returns:
        ``(B, [G,] M, L, E)`` in the dtype of ``v``.

    Raises:
        ValueError: If a shape does not fit; the message names it.
        NotImplementedError: If the implementation asked for does not exist.

    References:
        ViT (arXiv 2010.11929). Checked against a loop over tokens, and through
        `mmspatial.models.ViT` against timm's.

    Example:
        >>> import torch
        >>> q = k = v = torch.randn(1, 2, 12, 16)
        >>> plain_attention(q, k, v).shape
        torch.Size([1, 2, 12, 16])
    """
    check_attention(q, k, v, (1, q.shape[-2]), 0, key_mask)
    return run('plain_attention', impl, q, {
        'sdpa': Option(lambda: _sdpa(q, k, v, key_mask), plain=True),
        'reference': Option(lambda: plain_attention_reference(q, k, v, key_mask)),
    })  # fmt: skip


def plain_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None
) -> Tensor:
    """Compute `plain_attention` as its formula says."""
    weights = masked_softmax(exact_logits(q, k, q.shape[-1] ** -0.5), key_mask)
    return weights.to(v.dtype) @ v


def _sdpa(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    mask = None if key_mask is None else key_mask[..., None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
