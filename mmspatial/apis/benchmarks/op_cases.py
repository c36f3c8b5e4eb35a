"""What `tools/bench_ops.py` measures: each op on one grid, and all that can compute it.

Contenders take the same leaf tensors, q, k and v as ``(B, N, M, D)`` as projections leave them, and
return the same result, so that whatever an implementation has to rearrange is in its time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from mmspatial.models.layers.layout import Columns, Groups, Rows
from mmspatial.models.layers.priors.decay import log_decay_rates
from mmspatial.models.layers.priors.gaussian import bounded_variance, gaussian_limits
from mmspatial.ops import (
    _dispatch,
    alias_free_gelu,
    cross_covariance_attention,
    decay_attention,
    gated_attention,
    gaussian_attention,
    resample,
)

from . import published_ops as published

Grid = tuple[int, int]
Contender = Callable[..., Tensor]
Mod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# Implementations that an op may have, by its argument `impl`.
IMPLS = (*_dispatch.IMPLS, 'auto')
# EVT's group size.
_GROUP = 49


@dataclass(frozen=True)
class Setup:
    """What all cases of a run share.

    Attributes:
        device: Where they run.
        dtype: Of q, k, v and maps; gates and the like stay float32.
        heads: M of the full maps.
        width: D of the full maps.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    heads: int = 2
    width: int = 64

    def normal(self, *shape: int) -> Tensor:
        """Draw a tensor of the run's dtype, the same one for every run."""
        generator = torch.Generator().manual_seed(sum(shape))
        return torch.randn(shape, generator=generator).to(self.device, self.dtype)

    def tokens(self, grid: Grid, heads: int | None = None, width: int | None = None) -> Leaves:
        """Draw q, k and v, ``(1, N, M, D)`` each."""
        shape = (3, 1, grid[0] * grid[1], heads or self.heads, width or self.width)
        return dict(zip('qkv', self.normal(*shape).unbind(0), strict=True))


Leaves = dict[str, Tensor]


@dataclass
class Case:
    """An op on one grid.

    Attributes:
        label: What is attended to, for people.
        tokens: N, of the whole grid.
        leaves: Tensors that are read and want a gradient, in the contenders' order.
        contenders: By name; none has been tried.
    """

    label: str
    tokens: int
    leaves: Leaves
    contenders: dict[str, Contender]


def _heads_first(attend: Contender) -> Contender:
    """Let a function on ``(B, M, N, D)`` take and return ``(B, N, M, D)``."""

    def run(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), *rest).transpose(
            1, 2
        )

    return run


def _ours(op: Callable[..., Tensor], *order: str, **options: Any) -> dict[str, Contender]:
    """Make a contender of each implementation of an op."""
    return {
        impl: _heads_first(functools.partial(op, **options, impl=impl)) for impl in order or IMPLS
    }


def _no_bias() -> None:
    """Stand for the bias of plain SDPA."""


def _sdpa(make_bias: Callable[[], Tensor | None]) -> Contender:
    """Make SDPA with a bias that its first call makes and keeps."""
    kept = functools.cache(make_bias)

    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=kept())

    return _heads_first(attend)


@functools.cache
def _compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)


def _flex(make_mod: Callable[..., Mod]) -> Contender:
    """Make FlexAttention with a bias that is computed in its kernel.

    Args:
        make_mod: Makes the change of a score from the leaves behind q, k and v.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        if q.device.type == 'cpu' and torch.is_grad_enabled():
            raise NotImplementedError('FlexAttention has no backward on a CPU')
        return _compiled_flex()(q, k, v, score_mod=make_mod(*rest))

    return _heads_first(attend)


def _rates(heads: int, setup: Setup) -> Tensor:
    return log_decay_rates(heads, 2, 4, setup.device)


def _own(rates: Tensor) -> Tensor:
    """Copy rates, so that tables which an implementation caches for them count as its own."""
    return rates.clone()


def decay(grid: Grid, setup: Setup, metric: str) -> Case:
    """RMT's and EVT's decay on the full map."""
    leaves, rates, width = setup.tokens(grid), _rates(setup.heads, setup), grid[1]

    def dense() -> Tensor:
        return published.distance_mask(*grid, rates, metric).to(setup.dtype)

    def release(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return published.biased_attention(q, k, v, dense())

    def ours(impl: str) -> Contender:
        return _heads_first(
            functools.partial(
                decay_attention, log_decay=_own(rates), positions=grid, metric=metric, impl=impl
            )
        )

    def make_mod() -> Mod:
        def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            dy, dx = i // width - j // width, i % width - j % width
            if metric == 'manhattan':
                return score + rates[h] * (dy.abs() + dx.abs())
            return score + rates[h] * (dy * dy + dx * dx).to(torch.float32).sqrt()

        return mod

    contenders = {
        'published': _heads_first(release),
        **{impl: ours(impl) for impl in IMPLS},
        'sdpa_bias': _sdpa(lambda: dense().unsqueeze(0)),
        'flex': _flex(make_mod),
        'floor': _sdpa(_no_bias),
    }
    return _full_map(grid, setup, leaves, contenders)


def rows_columns(grid: Grid, setup: Setup) -> Case:
    """RMT's decomposed form, rows then columns, with the heads of RMT-S's first stage."""
    heads, width = 4, 16
    leaves, rates = setup.tokens(grid, heads, width), _rates(4, setup)
    rows, columns = Rows(), Columns()

    def both(line: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> Contender:
        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for axis, layout in ((1, rows), (0, columns)):
                split = (layout.split(t, grid) for t in (q, k, v))
                v = layout.merge(line(*split, axis), grid)
            return v

        return run

    def ours(impl: str) -> Contender:
        own, lines = _own(rates), ((grid[0], 1), (1, grid[1]))
        return both(lambda q, k, v, axis: decay_attention(q, k, v, own, lines[axis], impl=impl))

    def release(q: Tensor, k: Tensor, v: Tensor, axis: int) -> Tensor:
        return published.biased_attention(
            q, k, v, published.line_mask(grid[axis], rates).to(q.dtype)
        )

    def sdpa(with_bias: bool) -> Contender:
        masks = functools.cache(
            lambda: [published.line_mask(n, rates).to(setup.dtype).unsqueeze(0) for n in grid]
        )

        def line(q: Tensor, k: Tensor, v: Tensor, axis: int) -> Tensor:
            # Only four-dimensional inputs get a fused kernel.
            flat = (t.flatten(0, 1) for t in (q, k, v))
            mask = masks()[axis] if with_bias else None
            out = F.scaled_dot_product_attention(*flat, attn_mask=mask)
            return out.unflatten(0, q.shape[:2])

        return both(line)

    contenders = {
        'published': both(release),
        **{impl: ours(impl) for impl in IMPLS},
        'sdpa_bias': sdpa(True),
        'floor': sdpa(False),
    }
    label = f'rows and columns of {grid[0]}x{grid[1]}'
    return Case(label, grid[0] * grid[1], leaves, contenders)


def groups(grid: Grid, setup: Setup) -> Case:
    """EVT's dilated groups, with the heads of EVT-S's first stage."""
    heads, width = 4, 16
    leaves, rates = setup.tokens(grid, heads, width), _rates(4, setup)
    layout = Groups(_GROUP, dilated=True)
    positions, mask = layout.positions(grid, setup.device)

    def grouped(attend: Contender) -> Contender:
        def run(*qkv: Tensor) -> Tensor:
            return layout.merge(attend(*(layout.split(t, grid) for t in qkv)), grid)

        return run

    def dense() -> Tensor:
        bias = published.group_mask(positions, rates)
        return bias if mask is None else bias.masked_fill(~mask[:, None, None], -torch.inf)

    def release(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return published.biased_attention(q, k, v, dense().to(q.dtype))

    def sdpa(make_bias: Callable[[], Tensor | None]) -> Contender:
        bias = functools.cache(make_bias)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            flat = (t.flatten(0, 1) for t in (q, k, v))
            out = F.scaled_dot_product_attention(*flat, attn_mask=bias())
            return out.unflatten(0, q.shape[:2])

        return grouped(attend)

    def ours(impl: str) -> Contender:
        options = dict(
            log_decay=_own(rates), positions=positions, metric='euclidean', key_mask=mask, impl=impl
        )
        return grouped(functools.partial(decay_attention, **options))

    contenders = {
        'published': grouped(release),
        **{impl: ours(impl) for impl in IMPLS},
        'sdpa_bias': sdpa(lambda: dense().to(setup.dtype)),
        'floor': sdpa(_no_bias),
    }
    label = f'dilated groups of {_GROUP} of {grid[0]}x{grid[1]}'
    return Case(label, grid[0] * grid[1], leaves, contenders)


def gated(grid: Grid, setup: Setup) -> Case:
    """SDT's gates on the full map."""
    leaves, width = setup.tokens(grid), grid[1]
    opened = _rates(setup.heads, setup)[:, None]
    drawn = setup.normal(1, setup.heads, grid[0] * grid[1]).float()
    leaves['gate'] = opened * (1 + 0.1 * drawn).abs()
    leaves['alpha'] = torch.ones(setup.heads, device=setup.device)

    def dense(gate: Tensor, alpha: Tensor) -> Tensor:
        return published.gate_mask(gate, alpha, *grid).to(setup.dtype)

    def release(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, alpha: Tensor) -> Tensor:
        return published.biased_attention(q, k, v, dense(gate, alpha))

    def make_mod(gate: Tensor, alpha: Tensor) -> Mod:
        def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            dist = (i // width - j // width).abs() + (i % width - j % width).abs()
            return score - (alpha[h] * 0.5 * (gate[b, h, i] + gate[b, h, j]) * dist).abs()

        return mod

    contenders = {
        'published': _heads_first(release),
        **_ours(gated_attention, positions=grid),
        'sdpa_bias': _sdpa(lambda: dense(leaves['gate'], leaves['alpha'])),
        'flex': _flex(make_mod),
        'floor': _sdpa(_no_bias),
    }
    return _full_map(grid, setup, leaves, contenders)


def gaussian(grid: Grid, setup: Setup) -> Case:
    """LocAtViT's Gaussians on the full map."""
    leaves, width = setup.tokens(grid), grid[1]
    floor, eps = gaussian_limits(grid)
    drawn = setup.normal(1, setup.heads, grid[0] * grid[1], 3).float()
    leaves['alpha'] = F.softplus(drawn[..., 0])
    leaves['var'] = bounded_variance(drawn[..., 1:], grid)
    # As the release does: made once, unlike all that follows from it.
    offsets = functools.cache(
        lambda: published.gaussian_offsets(*grid, floor, setup.device, torch.float32)
    )

    def dense(alpha: Tensor, var: Tensor) -> Tensor:
        return published.gaussian_bias(alpha, var, offsets(), eps).to(setup.dtype)

    def release(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, var: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=dense(alpha, var))

    def make_mod(alpha: Tensor, var: Tensor) -> Mod:
        def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            dy, dx = (i // width - j // width).float(), (i % width - j % width).float()
            rows = (-0.5 * dy * dy).clamp(min=floor) / (var[b, h, i, 0] + eps)
            columns = (-0.5 * dx * dx).clamp(min=floor) / (var[b, h, i, 1] + eps)
            return score + alpha[b, h, i] * (rows + columns).exp()

        return mod

    contenders = {
        'published': _heads_first(release),
        **_ours(gaussian_attention, positions=grid, floor=floor, eps=eps),
        'sdpa_bias': _sdpa(lambda: dense(leaves['alpha'], leaves['var'])),
        'flex': _flex(make_mod),
        'floor': _sdpa(_no_bias),
    }
    return _full_map(grid, setup, leaves, contenders)


def cross_covariance(grid: Grid, setup: Setup) -> Case:
    """Alias-Free ViT-S's attention between channels."""
    heads, width = 8, 48
    leaves = setup.tokens(grid, heads, width)
    leaves['temperature'] = torch.ones(heads, 1, 1, device=setup.device)

    def release(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
        return published.cross_covariance(q, k, v, temperature.to(q.dtype))

    contenders = {
        'published': _heads_first(release),
        **_ours(cross_covariance_attention, 'reference', 'auto'),
    }
    label = f'{heads} heads of {width} channels, {grid[0]}x{grid[1]}'
    return Case(label, grid[0] * grid[1], leaves, contenders)


def resampling(grid: Grid, setup: Setup, *, up: bool) -> Case:
    """Alias-Free ViT-S's resampling of a channels-last map, from or to twice the grid."""
    channels, double = 384, (2 * grid[0], 2 * grid[1])
    source, target = (grid, double) if up else (double, grid)
    x = setup.normal(1, *source, channels).permute(0, 3, 1, 2)  # (B, C, H, W)
    contenders: dict[str, Contender] = {
        'published': published.upsample if up else published.downsample,
        **{impl: functools.partial(resample, size=target, impl=impl)
           for impl in ('reference', 'auto')},
    }  # fmt: skip
    label = f'{channels} channels, {source[0]}x{source[1]} to {target[0]}x{target[1]}'
    return Case(label, grid[0] * grid[1], {'x': x}, contenders)


def smooth_gelu(grid: Grid, setup: Setup) -> Case:
    """Alias-Free ViT-S's GELU of a channels-last map, on twice the grid."""
    channels = 384
    x = setup.normal(1, *grid, channels).permute(0, 3, 1, 2)  # (B, C, H, W)

    def release(x: Tensor) -> Tensor:
        return published.downsample(F.gelu(published.upsample(x)))

    contenders: dict[str, Contender] = {
        'published': release,
        **{impl: functools.partial(alias_free_gelu, impl=impl) for impl in ('reference', 'auto')},
    }
    label = f'{channels} channels, {grid[0]}x{grid[1]}'
    return Case(label, grid[0] * grid[1], {'x': x}, contenders)


def _full_map(grid: Grid, setup: Setup, leaves: Leaves, contenders: dict[str, Contender]) -> Case:
    label = f'{grid[0]}x{grid[1]}, {setup.heads} heads of {setup.width}'
    return Case(label, grid[0] * grid[1], leaves, contenders)


CASES: Mapping[str, Callable[[Grid, Setup], Case]] = {
    'decay_manhattan': functools.partial(decay, metric='manhattan'),
    'decay_euclidean': functools.partial(decay, metric='euclidean'),
    'rows_columns': rows_columns,
    'groups': groups,
    'gated': gated,
    'gaussian': gaussian,
    'cross_covariance': cross_covariance,
    'resample_up': functools.partial(resampling, up=True),
    'resample_down': functools.partial(resampling, up=False),
    'alias_free_gelu': smooth_gelu,
}
