"""GELU on the grid of twice the size without making that grid: in its four phases.

The samples at even and odd rows and columns are four maps of the size given: the map itself, and
the map shifted by half a sample along either axis and along both. GELU does not ask for their
order. Going up is then one shift for each axis, and going down a sum, written with the spectra of
an axis with N samples (``reference.py`` has the rest)::

    up     X_1[k] = exp(iπk/N) · X[k]
    down   Y[k]   = (E[k] + exp(-iπk/N) · O[k]) / 2,   E, O of what GELU makes of both

By matrices on short axes, by FFT on long ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._dispatch import wants_grad
from .._softmax import no_autocast
from .._tables import cached_table
from .matrix import axis_matrix

# Axes from which FFTs are faster than products (float32 on a CPU: 1.2 times at 128, 4 at 512).
_MIN_FFT = 128
# Samples of a slice of channels, a quarter of what its phases have: more leave the caches, and few
# channels are slow to gather from channels-last memory.
_SLICE_ENTRIES = 2**19


def alias_free_gelu_phases(x: Tensor, reduction: int) -> Tensor:
    """Compute `mmspatial.ops.alias_free_gelu`, some channels at a time; once differentiable."""
    return _Checkpointed.apply(x, reduction) if wants_grad(x) else _by_slices(x, reduction)


# Opaque to torch.compile, which would unroll the loop.
@torch.library.custom_op('mmspatial::alias_free_gelu', mutates_args=())
def _by_slices(x: Tensor, reduction: int) -> Tensor:
    """Compute `_act` of some channels at a time, into channels-last memory."""
    out = _empty(x, reduction)
    for part, target in _slices(x, out):
        target.copy_(_act(part, reduction))
    return out


@_by_slices.register_fake
def _empty(x: Tensor, reduction: int) -> Tensor:
    batch, channels, height, width = x.shape
    out = x.new_empty(batch, height // reduction, width // reduction, channels)
    return out.permute(0, 3, 1, 2)


class _Checkpointed(torch.autograd.Function):
    """`_by_slices` whose backward pass computes each slice again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reduction: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.reduction = reduction
        return _by_slices(x, reduction)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        for part, part_grad, target in _slices(x, grad, dx):
            with torch.enable_grad(), no_autocast(x.device):
                leaf = part.detach().requires_grad_()
                y = _act(leaf, ctx.reduction)
            target.copy_(*torch.autograd.grad(y, leaf, part_grad))
        return dx, None


def _slices(*maps: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Go through maps, the first of the fullest size, some channels ``(c, H, W)`` at a time."""
    step = max(_SLICE_ENTRIES // math.prod(maps[0].shape[2:]), 1)
    for image in zip(*maps, strict=True):
        yield from zip(*(t.split(step) for t in image), strict=True)


def gelu_(x: Tensor) -> Tensor:
    """Apply GELU to what nobody else reads, in its memory unless a gradient needs that."""
    return F.gelu(x) if wants_grad(x) else torch.ops.aten.gelu_(x)


def _act(x: Tensor, reduction: int) -> Tensor:
    """Take planes ``(c, H, W)`` up, through GELU and down to ``(c, H / reduction, ...)``."""
    x = x.contiguous()
    right, below = _shift(x, -1), _shift(x, -2)
    beside = _shift(below, -1)
    even = _down(F.gelu(x), gelu_(right), reduction, -1)
    odd = _down(gelu_(below), gelu_(beside), reduction, -1)
    y = _down(even, odd, reduction, -2)
    if reduction == 1:
        for dim in (-2, -1):
            if y.shape[dim] < _MIN_FFT:
                y = _without_nyquist(y, dim)
    return y


def _shift(x: Tensor, dim: int) -> Tensor:
    """Evaluate the interpolant of an axis, -2 or -1, half a sample further on."""
    length = x.shape[dim]
    if length >= _MIN_FFT:
        spectrum = _spectrum(x, dim)
        spectrum *= _half_turns(length, dim, spectrum.device, spectrum.dtype)
        return torch.fft.irfft(spectrum, length, dim).to(x.dtype)
    shift = _shift_matrix(length, x.device, x.dtype)
    return shift @ x if dim == -2 else x @ shift.T


def _down(even: Tensor, odd: Tensor, reduction: int, dim: int) -> Tensor:
    """Bring an axis, -2 or -1, down from its phases.

    A short one that keeps its size keeps its Nyquist frequency as well, see `_act`.
    """
    length = odd.shape[dim]
    size = length // reduction
    if length >= _MIN_FFT:
        low = (size + 1) // 2
        spectra = [_spectrum(x, dim).narrow(dim, 0, low) for x in (even, odd)]
        turns = _half_turns(length, dim, odd.device, spectra[0].dtype).narrow(dim, 0, low)
        y = torch.fft.irfft(spectra[0].addcmul_(spectra[1], turns.conj()), size, dim)
        return (y / (2 * reduction)).to(odd.dtype)
    kept, shifted = _down_matrices(length, size, odd.device, odd.dtype)
    y = shifted @ odd if dim == -2 else odd @ shifted.T
    if reduction == 1:
        # The other matrix is half the identity, but for the Nyquist frequency.
        return torch.add(y, even, alpha=0.5)
    return y + (kept @ even if dim == -2 else even @ kept.T)


def _without_nyquist(x: Tensor, dim: int) -> Tensor:
    """Take what alternates from sample to sample out of an axis, -2 or -1."""
    length = x.shape[dim]
    if length % 2:
        return x
    sign = 1 - 2 * (torch.arange(length, device=x.device, dtype=x.dtype) % 2)
    sign = sign.unflatten(0, (-1, *[1] * (-1 - dim)))
    return x - sign * (sign * x).mean(dim, keepdim=True)


def _spectrum(x: Tensor, dim: int) -> Tensor:
    """Transform an axis of real numbers, of half precision in float32, for which FFTs exist."""
    return torch.fft.rfft(x.to(torch.promote_types(x.dtype, torch.float32)), dim=dim)


@cached_table
def _half_turns(length: int, dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return exp(iπk/N) for each k >= 0 of a spectrum, to be multiplied with axis -2 or -1."""
    angle = torch.arange(length // 2 + 1, device=device, dtype=torch.float64) * (math.pi / length)
    turns = torch.polar(torch.ones_like(angle), angle).to(dtype)
    return turns.unflatten(0, (-1, *[1] * (-1 - dim)))


@cached_table
def _shift_matrix(length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return what an axis of N samples has at the odd ones of 2N, ``(N, N)``."""
    return axis_matrix(length, 2 * length, device, dtype)[1::2].contiguous()


@cached_table
def _down_matrices(
    length: int, size: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return what the even and the odd ones of 2N samples add to n fewer, ``(n, N)`` each."""
    down = axis_matrix(2 * length, size, device, dtype)
    return down[:, ::2].contiguous(), down[:, 1::2].contiguous()
