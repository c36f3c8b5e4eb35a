"""What every attention op asks of its tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .positions import Positions


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Positions,
    num_prefix: int,
    key_mask: Tensor | None,
) -> None:
    """Raise a ValueError that names the first shape which does not fit.

    Args:
        q: Must be ``(B, [G,] M, L, D)``.
        k: Must be shaped like ``q``.
        v: Must be shaped like ``q`` but for its width.
        positions: Must be a grid with ``L - num_prefix`` tokens, or ``(G or 1, n, 2)``.
        num_prefix: Must leave no negative number of tokens.
        key_mask: Must be bool and broadcast to ``(B, [G,] L)``.
    """
    if q.dim() not in (4, 5):
        raise ValueError(f'q must be (B, M, L, D) or (B, G, M, L, D), got {tuple(q.shape)}')
    if k.shape != q.shape or v.shape[:-1] != q.shape[:-1]:
        raise ValueError(
            f'k must be shaped like q, and v but for its width: '
            f'q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}'
        )
    length = q.shape[-2]
    if not 0 <= num_prefix <= length:
        raise ValueError(f'num_prefix={num_prefix}, but there are {length} tokens')
    if key_mask is not None:
        _check_mask(key_mask, (*q.shape[:-3], length))

    n = length - num_prefix
    if not isinstance(positions, Tensor):
        if positions[0] * positions[1] != n:
            raise ValueError(
                f'a grid {tuple(positions)} has {positions[0] * positions[1]} tokens, '
                f'q {tuple(q.shape)} has {n} after {num_prefix} prefix tokens'
            )
        return
    groups = q.shape[1] if q.dim() == 5 else 1
    if (
        positions.dim() != 3
        or positions.shape[0] not in (1, groups)
        or positions.shape[1:] != (n, 2)
    ):
        raise ValueError(
            f'positions must be ({groups} or 1, {n}, 2) for q {tuple(q.shape)} '
            f'with {num_prefix} prefix tokens, got {tuple(positions.shape)}'
        )


def _check_mask(key_mask: Tensor, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless a mask is bool and broadcasts to ``shape``."""
    fits = 1 <= key_mask.dim() <= len(shape) and all(
        have in (1, want) for have, want in zip(key_mask.shape[::-1], shape[::-1], strict=False)
    )
    if key_mask.dtype != torch.bool or not fits:
        raise ValueError(
            f'key_mask must be bool and broadcast to {shape}, '
            f'got {key_mask.dtype} {tuple(key_mask.shape)}'
        )
