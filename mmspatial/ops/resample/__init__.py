"""Ideal resampling of periodic maps (Alias-Free ViT)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .._dispatch import Option, is_capturing, is_exporting, run, wants_grad
from .matrix import resample_matrix
from .phases import alias_free_gelu_phases, gelu_
from .reference import resample_reference

# Samples of a map from which phases are faster (CPU, one thread): products of less are too small.
# In training, where they compute twice, the whole tensor has to outgrow the caches as well.
_MIN_SAMPLES, _MIN_SAMPLES_TRAINING = 32**2, 40**2
_MIN_ENTRIES_TRAINING = 2**21


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


def alias_free_gelu(x: Tensor, reduction: int = 1, *, impl: str = 'auto') -> Tensor:
    """Apply GELU to a map upsampled to twice the grid, and downsample the result.

    ::

        y = downsample(gelu(upsample(x, 2)), 2 · reduction)

    GELU makes frequencies that the grid cannot hold; they go before they alias. Hence y moves with
    x, by fractions of a sample too.

    Large maps on a CPU are taken a few channels at a time (``phases.py``): nothing of the fine
    grid's size is kept, for the backward pass neither. That one cannot be differentiated again;
    ``impl='reference'`` can.

    Args:
        x: ``(B, C, H, W)``, real.
        reduction: Factor by which the resulting grid is smaller than the given one.
        impl: ``'auto'``, or ``'reference'`` for `resample`'s.

    Returns:
        ``(B, C, H / reduction, W / reduction)`` in the dtype of ``x``.

    Raises:
        ValueError: If the factor does not divide both sides.
        NotImplementedError: If the implementation asked for does not exist.

    References:
        Alias-Free ViT (arXiv 2510.22673).

    Example:
        >>> import torch
        >>> x = torch.randn(1, 2, 8, 6)
        >>> alias_free_gelu(x, 2).shape
        torch.Size([1, 2, 4, 3])
    """
    if x.dim() != 4:
        raise ValueError(f'x must be (B, C, H, W), got {tuple(x.shape)}')
    height, width = x.shape[2:]
    if height % reduction or width % reduction:
        raise ValueError(f'a map of {(height, width)} cannot be reduced by {reduction}')
    fine, coarse = (2 * height, 2 * width), (height // reduction, width // reduction)

    def by(resampled: Callable[[Tensor, tuple[int, int]], Tensor]) -> Tensor:
        return resampled(gelu_(resampled(x, fine)), coarse)

    return run('alias_free_gelu', impl, x, {
        'phases': Option(
            lambda: alias_free_gelu_phases(x, reduction),
            lambda: _why_no_phases(x),
            lambda: _phases_pay(x),
            plain=True,
        ),
        'matrix': Option(lambda: by(resample_matrix), plain=True),
        'reference': Option(lambda: by(resample_reference)),
    })  # fmt: skip


def _why_no_phases(x: Tensor) -> str | None:
    if not x.is_cpu:
        return 'it is measured on CPUs only'
    if is_exporting() or (is_capturing() and wants_grad(x)):
        return 'a graph is captured that leaves PyTorch, or with gradients'
    return None


def _phases_pay(x: Tensor) -> bool:
    samples = x.shape[2] * x.shape[3]
    if wants_grad(x):
        return samples >= _MIN_SAMPLES_TRAINING and x.numel() >= _MIN_ENTRIES_TRAINING
    return samples >= _MIN_SAMPLES
