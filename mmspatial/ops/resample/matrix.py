"""`resample` as matrix products: cheaper than FFTs up to large maps, and in any dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._dispatch import is_exporting
from .._tables import cached_table
from .reference import resample_axis_reference

# Axes longer than this before or after go through the FFT, which is cheaper there (float32 on a
# CPU: products win at 256 -> 512 by 1.5 times, and lose at 512 -> 1024 by 1.6 to 2.6).
MAX_LENGTH = 512


def resample_matrix(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Compute `mmspatial.ops.resample` by two matrix products, in the dtype of ``x``."""
    x = x.permute(0, 2, 3, 1)  # (B, H, W, C)
    # Rows with all that is in them are one product per image, columns one per row: contiguous
    # both ways in channels-last memory, in which the backbones keep their maps.
    batch, height, width, channels = x.shape
    if _by_matrix(height, size[0]):
        rows = _matrix(height, size[0], x) @ x.reshape(batch, height, width * channels)
        x = rows.reshape(batch, size[0], width, channels)
    else:
        x = resample_axis_reference(x, size[0], 1)
    if _by_matrix(width, size[1]):
        x = _matrix(width, size[1], x) @ x
    else:
        x = resample_axis_reference(x, size[1], 2)
    return x.permute(0, 3, 1, 2)  # (B, C, *size)


def _by_matrix(old: int, new: int) -> bool:
    """Tell whether an axis is resampled by a matrix."""
    # Exported graphs have no FFT.
    return old != new and (is_exporting() or max(old, new) <= MAX_LENGTH)


def _matrix(old: int, new: int, x: Tensor) -> Tensor:
    return axis_matrix(old, new, x.device, x.dtype)


@cached_table
def axis_matrix(old: int, new: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Make the matrix that resamples an axis: waves on the new grid times waves on the old one.

    ::

        R[m, j] = 1/N · Σ_k w_k · cos(2π k (m/n - j/N)),   k >= 0

    with w = 1 for k = 0 and for the Nyquist frequency, which is there only on the way up from
    an even N, and else 2, for k and -k together.

    Args:
        old: Samples N before.
        new: Samples n after.
        device: Where the matrix is made.
        dtype: Of the result; the sums run in float64 where the device has it.

    Returns:
        ``(n, N)``.
    """
    exact = torch.float32 if device.type == 'mps' else torch.float64
    with_nyquist = new > old and old % 2 == 0
    k = torch.arange((min(old, new) + 1) // 2 + with_nyquist, device=device)
    weight = torch.where((k == 0) | (2 * k == old), 1, 2).to(exact)

    def phase(length: int) -> Tensor:
        # Whole turns are taken out of the integers, where nothing is rounded.
        turns = torch.arange(length, device=device)[:, None] * k % length
        return turns.to(exact) * (2 * math.pi / length)

    new_phase, old_phase = phase(new), phase(old)
    cosines = (new_phase.cos() * weight) @ old_phase.cos().T
    sines = (new_phase.sin() * weight) @ old_phase.sin().T
    return ((cosines + sines) / old).to(dtype)
