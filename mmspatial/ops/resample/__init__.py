"""Ideal resampling of periodic maps (Alias-Free ViT)."""

from __future__ import annotations

from torch import Tensor

from .._dispatch import Option, run
from .matrix import resample_matrix
from .reference import resample_reference


def resample(x: Tensor, size: tuple[int, int], *, impl: str = 'auto') -> Tensor:
    """Evaluate the periodic band-limited interpolant of a map on another grid.

    Each axis by itself, from N to n samples; amplitudes are kept::

        y[m] = 1/N · Σ_k w_k · X[k] · exp(2πi · k · m / n),   X = DFT(x)

        up    (n > N)   |k| <= N/2;  w = 1, but 1/2 for each of k = ±N/2 if N is even
        down  (n < N)   |k| <  n/2;  w = 1, so nothing is left at n/2 if n is even

    An axis whose size stays is left alone. Sample 0 stays at position 0. Cyclic shifts by whole
    samples commute with going up, and fractional ones too if nothing is at ±N/2, as after going
    down.

    Computed by two small matrix products per map in the dtype of ``x``, half precision included;
    axes longer than `matrix.MAX_LENGTH` by FFT in at least float32. Matrices are cached by size.

    Args:
        x: ``(B, C, H, W)``, real.
        size: Rows and columns of the result.
        impl: ``'auto'``, or ``'reference'`` for the FFT on every axis.

    Returns:
        ``(B, C, *size)`` in the dtype of ``x``.

    Raises:
        ValueError: If a shape has no meaning; the message says which.
        NotImplementedError: If the implementation asked for does not exist.

    References:
        Alias-Free ViT (arXiv 2510.22673). Checked against direct DFT sums in float64 for all
        parities; the released code takes the parity of the width for both axes.

    Example:
        >>> import torch
        >>> resample(torch.tensor([[[[1.0, -1.0]]]]), (1, 4)).round(decimals=3)
        tensor([[[[ 1.,  0., -1.,  0.]]]])
    """
    if x.dim() != 4:
        raise ValueError(f'x must be (B, C, H, W), got {tuple(x.shape)}')
    if min(*x.shape[2:], *size) < 1:
        raise ValueError(f'cannot resample a map of {tuple(x.shape[2:])} to {tuple(size)}')
    return run('resample', impl, x, {
        'matrix': Option(lambda: resample_matrix(x, size), plain=True),
        'reference': Option(lambda: resample_reference(x, size)),
    })  # fmt: skip


def upsample(x: Tensor, factor: int = 2, *, impl: str = 'auto') -> Tensor:
    """Resample ``(B, C, H, W)`` to ``(B, C, factor · H, factor · W)``, see `resample`."""
    return resample(x, (x.shape[2] * factor, x.shape[3] * factor), impl=impl)


def downsample(x: Tensor, factor: int = 2, *, impl: str = 'auto') -> Tensor:
    """Resample ``(B, C, H, W)`` to ``(B, C, H / factor, W / factor)``, see `resample`.

    Raises:
        ValueError: If the factor does not divide both sides.
    """
    height, width = x.shape[2:]
    if height % factor or width % factor:
        raise ValueError(f'a map of {(height, width)} cannot be downsampled by {factor}')
    return resample(x, (height // factor, width // factor), impl=impl)
