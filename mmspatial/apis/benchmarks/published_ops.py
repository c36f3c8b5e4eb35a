"""The ops as their authors compute them, to measure against: every bias and mask materialised.

Our own writing, after the releases (RMT, LocAtViT, Alias-Free ViT) where there are some and after
the paper's formula (EVT, SDT) where there are none.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def distance_mask(height: int, width: int, rates: Tensor, metric: str = 'manhattan') -> Tensor:
    """Build the decay between all tokens of a grid from its indices.

    Args:
        height: Rows H.
        width: Columns W.
        rates: ``(M,)``, the decay of each head.
        metric: ``'manhattan'`` (RMT) or ``'euclidean'`` (EVT).

    Returns:
        ``(M, N, N)``.
    """
    return rates[:, None, None] * _distance(grid_index(height, width, rates), metric)


def line_mask(length: int, rates: Tensor) -> Tensor:
    """Build the decay within a row or column, ``(M, length, length)``."""
    index = torch.arange(length).to(rates)
    return (index[:, None] - index[None, :]).abs() * rates[:, None, None]


def group_mask(index: Tensor, rates: Tensor) -> Tensor:
    """Build EVT's decay within groups whose tokens are at ``index`` ``(G, n, 2)``.

    Returns:
        ``(G, M, n, n)``.
    """
    return rates[:, None, None] * _distance(index.to(rates), 'euclidean').unsqueeze(1)


def gate_mask(gate: Tensor, alpha: Tensor, height: int, width: int) -> Tensor:
    """Build SDT's decay from gates ``(B, M, N)`` and ``alpha`` ``(M,)``.

    Returns:
        ``(B, M, N, N)``.
    """
    pair = (gate.unsqueeze(-1) + gate.unsqueeze(-2)) / 2
    dist = _distance(grid_index(height, width, gate), 'manhattan')
    return -(pair * dist * alpha[:, None, None]).abs()


def gaussian_offsets(
    height: int, width: int, floor: float | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Build ``max(-d² / 2, floor)`` for both axes, ``(N, N, 2)``; the release keeps it."""
    index = torch.stack(
        torch.meshgrid(
            torch.arange(height, device=device), torch.arange(width, device=device), indexing='ij'
        ),
        -1,
    ).flatten(0, 1)  # (N, 2)
    power = -0.5 * (index[None, :] - index[:, None]).square().to(dtype)
    return power if floor is None else power.clamp(min=floor)


def gaussian_bias(
    alpha: Tensor, var: Tensor, offsets: Tensor, eps: float, num_prefix: int = 0
) -> Tensor:
    """Build LocAtViT's addition to the logits, with an exponential per pair of tokens.

    Args:
        alpha: ``(B, M, N)``.
        var: ``(B, M, N, 2)``.
        offsets: From `gaussian_offsets`.
        eps: Added to the variances.
        num_prefix: P.

    Returns:
        ``(B, M, P + N, P + N)``.
    """
    gauss = (offsets / (var.unsqueeze(3) + eps)).sum(-1).exp()  # (B, M, N, N)
    return F.pad(alpha.unsqueeze(-1) * gauss, (num_prefix, 0, num_prefix, 0))


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attend with a bias that is there, step by step (RMT's release); ``(…, L, D)`` each."""
    return ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + bias).softmax(-1) @ v


def cross_covariance(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
    """Attend between channels with queries and keys normalised first (XCiT).

    Args:
        q: ``(B, M, L, D)``, like the others.
        k: Keys.
        v: Values.
        temperature: ``(M, 1, 1)``.

    Returns:
        ``(B, M, L, D)``.
    """
    q, k, v = (t.transpose(-2, -1) for t in (q, k, v))  # (B, M, D, L)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    weights = (q @ k.transpose(-2, -1) * temperature).softmax(-1)
    return (weights @ v).transpose(-2, -1)


def upsample(x: Tensor, factor: int = 2) -> Tensor:
    """Resample ``(B, C, H, W)`` up through a two-dimensional FFT padded with zeros."""
    height, width = x.shape[-2:]
    spectrum = torch.fft.rfft2(_wide(x))
    first, last = height // 2 + 1, height // 2
    rows = spectrum.new_zeros(*x.shape[:2], height * factor - first - last, spectrum.shape[-1])
    spectrum = torch.cat((spectrum[..., :first, :], rows, spectrum[..., height - last :, :]), -2)
    missing = width * factor // 2 + 1 - spectrum.shape[-1]
    columns = spectrum.new_zeros(*spectrum.shape[:-1], missing)
    spectrum = torch.cat((spectrum, columns), -1) * factor**2
    if height % 2 == 0:
        spectrum[..., first - 1, :] *= 0.5
        spectrum[..., -last, :] *= 0.5
    if width % 2 == 0:
        spectrum[..., width // 2] *= 0.5
    return torch.fft.irfft2(spectrum, s=(height * factor, width * factor)).to(x.dtype)


def downsample(x: Tensor, factor: int = 2) -> Tensor:
    """Resample ``(B, C, H, W)`` down through a two-dimensional FFT cut to low frequencies."""
    height, width = x.shape[-2] // factor, x.shape[-1] // factor
    spectrum = torch.fft.rfft2(_wide(x))[..., : width // 2 + 1]
    first, last = height // 2 + 1, height - height // 2 - 1
    low = spectrum[..., :first, :]
    if last:
        low = torch.cat((low, spectrum[..., -last:, :]), -2)
    spectrum = low / factor**2
    if height % 2 == 0:
        spectrum[..., height // 2, :] = 0
    if width % 2 == 0:
        spectrum[..., width // 2] = 0
    return torch.fft.irfft2(spectrum, s=(height, width)).to(x.dtype)


def grid_index(height: int, width: int, like: Tensor) -> Tensor:
    """Return the indices ``(N, 2)`` of a grid's tokens in the dtype and place of a tensor."""
    lines = (torch.arange(length).to(like) for length in (height, width))
    return torch.stack(torch.meshgrid(*lines, indexing='ij'), -1).flatten(0, 1)


def _distance(index: Tensor, metric: str) -> Tensor:
    """Measure ``(…, n, n)`` between indices ``(…, n, 2)``, all offsets materialised."""
    offset = index.unsqueeze(-2) - index.unsqueeze(-3)
    if metric == 'manhattan':
        return offset.abs().sum(-1)
    return offset.square().sum(-1).sqrt()


def _wide(x: Tensor) -> Tensor:
    """FFTs need at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
