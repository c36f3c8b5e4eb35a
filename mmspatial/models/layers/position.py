"""Rotary position encoding as RMT has it."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspatial.ops import cached_table, is_capturing, is_exporting


@cached_table
def rotary_table(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Make the cosines and sines for tokens 0 .. N-1 of a row-major sequence.

    Built in float32 for every model dtype, as released weights were trained: at large indices
    the rounding of the angle is part of the model.

    Args:
        length: Tokens N.
        width: Head width D, even.
        device: Where the tables are made.

    Returns:
        Two tensors ``(N, 1, D)`` float32, which broadcast over heads.
    """
    angle = 1.0 / 10000 ** torch.linspace(0, 1, width // 2, device=device)
    phase = torch.arange(length, device=device, dtype=torch.float32)[:, None] * angle
    phase = phase.repeat_interleave(2, dim=-1).unsqueeze(1)  # (N, 1, D)
    return phase.cos(), phase.sin()


@cached_table
def rotary_turns(length: int, width: int, device: torch.device) -> Tensor:
    """Make the same as complex numbers, one for each pair of channels: ``(N, 1, D / 2)``."""
    cos, sin = rotary_table(length, width, device)
    return torch.complex(cos[..., ::2], sin[..., ::2])


@torch.library.custom_op('mmspatial::rotary_table', mutates_args=())
def _opaque_table(like: Tensor, length: int, width: int) -> tuple[Tensor, Tensor]:
    """Look up `rotary_table` out of sight of `torch.compile`.

    It would merge the table's steps into those that read it, a cosine and a sine for every channel
    of every block.
    """
    # Copies, over which compiled code may write.
    cos, sin = rotary_table(length, width, like.device)
    return cos.clone(), sin.clone()


@_opaque_table.register_fake
def _(like: Tensor, length: int, width: int) -> tuple[Tensor, Tensor]:
    shape = (length, 1, width)
    return like.new_empty(shape, dtype=torch.float32), like.new_empty(shape, dtype=torch.float32)


def apply_rotary(x: Tensor, num_prefix: int = 0) -> Tensor:
    """Turn each pair of channels by an angle proportional to the token's index.

    ::

        x -> x · cos(t · angle) + rot(x) · sin(t · angle)
        rot(x)[2m] = -x[2m+1],   rot(x)[2m+1] = x[2m]

    Args:
        x: Queries or keys ``(B, P + N, M, D)``.
        num_prefix: P tokens in front that are left as they are.

    Returns:
        Shaped like ``x``.
    """
    if num_prefix:
        return torch.cat((x[:, :num_prefix], apply_rotary(x[:, num_prefix:])), 1)
    size = (x.shape[1], x.shape[-1], x.device)
    if _takes_complex(x):
        # A single pass over x, where the form below takes six.
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * rotary_turns(*size)).flatten(-2)
    if torch.compiler.is_compiling() and not is_exporting():
        cos, sin = _opaque_table(x, *size[:2])
    else:
        cos, sin = rotary_table(*size)
    rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos.to(x.dtype) + rotated * sin.to(x.dtype)


def _takes_complex(x: Tensor) -> bool:
    """Say whether pairs can be viewed as complex numbers, which captured graphs cannot have."""
    if is_capturing() or x.device.type == 'mps' or x.dtype not in (torch.float32, torch.float64):
        return False
    offsets = (*x.stride()[:-1], x.storage_offset())
    return x.stride(-1) == 1 and all(offset % 2 == 0 for offset in offsets)
