"""GELU on the grid of twice the size without making that grid: in its four phases.

The samples at even and odd rows and columns are four maps of the size given: the map itself, and
the map shifted by half a sample along either axis and along both. GELU does not ask for their
order, and half of each product of `resample_matrix` is saved.

With products of N x N matrices H (the shift by half a sample), and D = [D_0, D_1] (going down,
even and odd columns), for each axis::

    up     x_0 = x,  x_1 = H x
    down   y   = D_0 gelu(x_0) + D_1 gelu(x_1)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._softmax import no_autocast
from .._tables import cached_table
from .matrix import axis_matrix
from .reference import resample_reference

# Axes longer than this go through the FFT (float32 on a CPU: products win at 1024 and lose at
# 2048), those from the other on have halves worth adding and subtracting.
_MAX_LENGTH = 1024
_MIN_SPLIT = 128
# Samples of a slice of channels: with its phases, 4 MB in float32, about a core's cache; but a
# few channels at least, for products of some size.
_SLICE_ENTRIES = 2**18
_MIN_CHANNELS = 4

# Of a matrix alone, or of those for the sum and the difference of the two halves of an axis.
_Form = tuple[Tensor, ...]


def alias_free_gelu_phases(x: Tensor, reduction: int) -> Tensor:
    """Compute `mmspatial.ops.alias_free_gelu`, some channels at a time; once differentiable."""
    return _BySlices.apply(x, reduction)


class _BySlices(torch.autograd.Function):
    """`_act` on some channels at a time; the backward pass computes it again, as checkpoints do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reduction: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.reduction = reduction
        batch, channels, height, width = x.shape
        out = x.new_empty(batch, height // reduction, width // reduction, channels)
        out = out.permute(0, 3, 1, 2)
        for part, target in _slices(x, out):
            target.copy_(_act(part, reduction))
        return out

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
    step = max(_SLICE_ENTRIES // maps[0][0, 0].numel(), _MIN_CHANNELS)
    for image in zip(*maps, strict=True):
        yield from zip(*(t.split(step) for t in image), strict=True)


def gelu_(x: Tensor) -> Tensor:
    """Apply GELU to what nobody else reads, in its memory unless a gradient needs that."""
    return F.gelu(x) if torch.is_grad_enabled() and x.requires_grad else torch.ops.aten.gelu_(x)


def _act(x: Tensor, reduction: int) -> Tensor:
    """Take planes ``(c, H, W)`` up, through GELU and down to ``(c, H / reduction, ...)``."""
    height, width = x.shape[1:]
    if max(height, width) > _MAX_LENGTH:
        fine = gelu_(resample_reference(x[None], (2 * height, 2 * width)))
        return resample_reference(fine, (height // reduction, width // reduction))[0]
    x = x.contiguous()
    shift = _shift(width, x.device, x.dtype)
    right = _apply(shift, x, 2)
    below = _apply(_shift(height, x.device, x.dtype), x, 1)
    beside = _apply(shift, below, 2)
    even = _down(F.gelu(x), gelu_(right), reduction, 2)
    odd = _down(gelu_(below), gelu_(beside), reduction, 2)
    y = _down(even, odd, reduction, 1)
    if reduction == 1:
        for dim in (1, 2):
            y = _without_nyquist(y, dim)
    return y


def _down(even: Tensor, odd: Tensor, reduction: int, dim: int) -> Tensor:
    """Bring the two phases of an axis down; frequencies that alias may be left if it stays N."""
    length = odd.shape[dim]
    sizes = length, length // reduction
    y = _apply(_half_of_down(*sizes, 1, odd.device, odd.dtype), odd, dim)
    if reduction == 1:
        # D_0 is half the identity, but for the Nyquist frequency: that goes once, at the end.
        return torch.add(y, even, alpha=0.5)
    return y + _apply(_half_of_down(*sizes, 0, odd.device, odd.dtype), even, dim)


def _without_nyquist(x: Tensor, dim: int) -> Tensor:
    """Take what alternates from sample to sample out of an axis."""
    length = x.shape[dim]
    if length % 2:
        return x
    sign = 1 - 2 * (torch.arange(length, device=x.device, dtype=x.dtype) % 2)
    sign = sign.view(-1, *[1] * (x.dim() - 1 - dim))
    return x - sign * (sign * x).mean(dim, keepdim=True)


def _apply(form: _Form, x: Tensor, dim: int) -> Tensor:
    """Multiply an axis of ``(c, H, W)``, 1 or 2, by a matrix in the form that `_split` gives."""
    if len(form) == 1:
        return form[0] @ x if dim == 1 else x @ form[0].T
    first, second = x.chunk(2, dim)
    total = _apply(form[:1], first + second, dim)
    rest = _apply(form[1:], first - second, dim)
    return torch.cat((total + rest, total - rest), dim)


@cached_table
def _shift(length: int, device: torch.device, dtype: torch.dtype) -> _Form:
    """Make H: the odd samples of an axis that goes up from N."""
    return _split(axis_matrix(length, 2 * length, device, dtype)[1::2])


@cached_table
def _half_of_down(
    length: int, out: int, phase: int, device: torch.device, dtype: torch.dtype
) -> _Form:
    """Make D_0 or D_1: what every other sample of 2N adds to those of an axis that goes down."""
    return _split(axis_matrix(2 * length, out, device, dtype)[:, phase::2])


def _split(matrix: Tensor) -> _Form:
    """Use that a shift by half the period commutes with resampling, if the axis is long.

    Of the blocks ``[[A, B], [B, A]]`` the sum acts on the sum of the halves, the difference on
    their difference: half the products.
    """
    rows, columns = matrix.shape
    if rows % 2 or columns % 2 or columns < _MIN_SPLIT:
        return (matrix.contiguous(),)
    same, other = matrix[: rows // 2].chunk(2, 1)
    return ((same + other) / 2, (same - other) / 2)
