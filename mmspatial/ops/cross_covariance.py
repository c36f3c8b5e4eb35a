"""Attention between channels instead of tokens (XCiT, Alias-Free ViT)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._dispatch import Option, run

# Channels shorter than this are divided by it instead of by their length.
_EPS = 1e-12


def cross_covariance_attention(
    q: Tensor, k: Tensor, v: Tensor, temperature: Tensor, *, impl: str = 'auto'
) -> Tensor:
    """Attend between the channels of each head, by the cosines between them.

    ::

        A = softmax(t_h · Q̂ᵀ K̂),   O = V Aᵀ,   Q̂ = Q / |Q| per channel, over the tokens

    ``D x D`` weights per head: time and memory grow linearly with the tokens. Instead of Q and K
    their product is divided by the lengths, which spares two passes over each; in float16, whose
    range such products leave, Q and K come first. Lengths, cosines and softmax are in at least
    float32.

    Args:
        q: Queries ``(B, M, L, D)``.
        k: Keys, shaped like ``q``.
        v: Values, shaped like ``q``.
        temperature: Factor t on the cosines, ``(M, 1, 1)``.
        impl: ``'auto'``, or ``'reference'`` to divide Q and K first.

    Returns:
        ``(B, M, L, D)`` in the dtype of ``v``.

    Raises:
        ValueError: If shapes do not fit; the message names them.
        NotImplementedError: If the implementation asked for does not exist.

    References:
        XCiT (arXiv 2106.09681). Checked against loops over heads and channels in float64.

    Example:
        >>> import torch
        >>> q = k = v = torch.randn(1, 4, 10, 8)
        >>> cross_covariance_attention(q, k, v, torch.ones(4, 1, 1)).shape
        torch.Size([1, 4, 10, 8])
    """
    if q.dim() != 4 or not q.shape == k.shape == v.shape:
        raise ValueError(
            f'q, k and v must have one shape (B, M, L, D), '
            f'got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}'
        )
    if temperature.shape != (q.shape[1], 1, 1):
        raise ValueError(
            f'temperature must be ({q.shape[1]}, 1, 1), got {tuple(temperature.shape)}'
        )
    return run('cross_covariance_attention', impl, q, {
        'folded': Option(lambda: cross_covariance_folded(q, k, v, temperature), plain=True),
        'reference': Option(lambda: cross_covariance_reference(q, k, v, temperature)),
    })  # fmt: skip


def cross_covariance_reference(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
    """Compute `cross_covariance_attention` as its formula says."""
    q_unit = (q * _inverse_length(q).unsqueeze(-2)).to(q.dtype)
    k_unit = (k * _inverse_length(k).unsqueeze(-2)).to(k.dtype)
    cosines = q_unit.transpose(-2, -1) @ k_unit  # (B, M, D, D)
    weights = (cosines * temperature.to(_wide(q))).softmax(-1)
    return v @ weights.transpose(-2, -1).to(v.dtype)


def cross_covariance_folded(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
    """Compute `cross_covariance_attention` with the lengths taken out of the product."""
    if q.dtype == torch.float16:
        return cross_covariance_reference(q, k, v, temperature)
    row = _inverse_length(q) * temperature.to(_wide(q)).squeeze(-1)  # (B, M, D)
    product = q.transpose(-2, -1) @ k  # (B, M, D, D)
    weights = (product * row.unsqueeze(-1) * _inverse_length(k).unsqueeze(-2)).softmax(-1)
    return v @ weights.transpose(-2, -1).to(v.dtype)


def _wide(x: Tensor) -> torch.dtype:
    """Return the dtype in which lengths and softmax are computed."""
    return torch.promote_types(x.dtype, torch.float32)


def _inverse_length(x: Tensor) -> Tensor:
    """Map ``(B, M, L, D)`` to ``(B, M, D)``, over the tokens, in at least float32."""
    return x.to(_wide(x)).square().sum(-2).clamp_min(_EPS**2).rsqrt()
