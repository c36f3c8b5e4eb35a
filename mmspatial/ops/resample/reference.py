"""The definition of `resample`: cut or zero-pad the spectrum of each axis."""

from __future__ import annotations

import torch
from torch import Tensor


def resample_reference(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Compute `mmspatial.ops.resample` as its formula says."""
    for dim, out_size in zip((2, 3), size, strict=True):
        x = resample_axis_reference(x, out_size, dim)
    return x


def resample_axis_reference(x: Tensor, size: int, dim: int) -> Tensor:
    """Resample one axis through its one-sided spectrum, k >= 0 (``x`` is real).

    Args:
        x: Any shape and dtype; half precision goes through float32, for which FFTs exist.
        size: New length n of the axis.
        dim: The axis.

    Returns:
        Shaped like ``x`` but for the axis, in its dtype.
    """
    old = x.shape[dim]
    if size == old:
        return x
    spectrum = torch.fft.rfft(x.to(torch.promote_types(x.dtype, torch.float32)), dim=dim)
    if size < old:
        spectrum = spectrum.narrow(dim, 0, (size + 1) // 2)
    elif old % 2 == 0:
        # One bin stands for both k = ±N/2; on the longer grid each gets half of it.
        low, nyquist = spectrum.split([old // 2, 1], dim)
        spectrum = torch.cat((low, nyquist / 2), dim)
    return (torch.fft.irfft(spectrum, size, dim) * (size / old)).to(x.dtype)
