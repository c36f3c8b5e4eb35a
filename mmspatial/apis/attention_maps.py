"""Where an attention layer looks from one token: its spatial prior and its weights, as maps.

Nothing in the models is made for this: hooks record what a layer hands to its prior in one run,
and the references' own functions turn that into the bias on the logits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspatial.models.layers.attention import SpatialAttention
from mmspatial.models.layers.layout import Layout
from mmspatial.models.layers.priors import DecayPrior, GatedPrior, GaussianPrior, NoPrior
from mmspatial.models.layers.priors.decay import log_decay_rates
from mmspatial.models.layers.tokens import Grid
from mmspatial.models.layers.window import (
    WindowAttention,
    merge_windows,
    shift_mask,
    split_windows,
)
from mmspatial.models.trunks.backbone import Backbone
from mmspatial.ops import Positions
from mmspatial.ops._softmax import exact_logits
from mmspatial.ops.decay_attention.reference import decay_bias
from mmspatial.ops.gated_attention.reference import gated_bias
from mmspatial.ops.gaussian_attention.reference import gaussian_bias

Layer = SpatialAttention | WindowAttention


@dataclass(frozen=True)
class AttentionMaps:
    """What one token takes from all others, for one head.

    A layer with two passes, such as rows and then columns, joins two tokens by one path: its maps
    are the products along it, ``column[i, l] * row[l, j]`` with l in the column of i and the row
    of j.

    Attributes:
        prior: ``(H, W)``, ``exp(B)`` for the bias B on the logits: the factor on a weight before
            the weights are normalised.
        plain: ``(H, W)``, the attention that the same queries and keys give without the prior.
        attention: ``(H, W)``, the attention that the layer uses. This and `plain` sum to
            1 - `outside`, but for a decay after the softmax, which takes from the weights.
        seen: ``(H, W)`` bool, the tokens that this one can attend to at all.
        outside: The part of `attention` on class token and registers, or on a window's padding.
    """

    prior: Tensor
    plain: Tensor
    attention: Tensor
    seen: Tensor
    outside: float


@dataclass
class Recording:
    """What a layer handed to its prior in one run.

    Attributes:
        layer: The attention layer.
        grid: Rows and columns of its tokens.
        passes: Arguments of the prior, by name, for each pass.
    """

    layer: Layer
    grid: Grid = (0, 0)
    passes: list[dict[str, Any]] = field(default_factory=list)

    @torch.no_grad()
    def maps(self, query: Grid, head: int) -> AttentionMaps:
        """Compute the maps of the first image in the batch.

        Args:
            query: Row and column of the token that looks.
            head: Which head.
        """
        layouts = _layouts(self.layer)
        steps = [
            _weights(self.layer, layout, self.grid, head, **call)
            for layout, call in zip(layouts, self.passes, strict=True)
        ]
        prior, plain, attention, seen = (
            _compose(matrices, layouts, self.grid, query) for matrices in zip(*steps, strict=True)
        )
        tokens = self.grid[0] * self.grid[1]
        on_grid = [share[-tokens:].view(self.grid) for share in (prior, plain, attention, seen)]
        inside = on_grid[2].sum()
        # Windows drop their padding; what it took is what is missing.
        total = 1 if isinstance(self.layer, WindowAttention) else attention.sum()
        return AttentionMaps(*on_grid[:3], on_grid[3] > 0, float(total - inside))


def find_layers(backbone: nn.Module) -> dict[str, tuple[int, Layer]]:
    """List the attention layers with a spatial prior.

    Args:
        backbone: Any backbone; only ours have such layers.

    Returns:
        Stage and layer by the block's name: ``stage.block`` in a pyramid, ``block`` in a plain
        ViT, both counted from 0.
    """
    if not isinstance(backbone, Backbone):
        return {}
    stages = [list(stage.blocks) for stage in backbone.stages]
    is_plain = all(len(blocks) == 1 for blocks in stages) and len(set(backbone.stage_strides)) == 1
    return {
        f'{s}' if is_plain else f'{s}.{b}': (s, block.attn)
        for s, blocks in enumerate(stages)
        for b, block in enumerate(blocks)
        if isinstance(getattr(block, 'attn', None), Layer)
    }


@contextmanager
def recorded(layer: Layer) -> Iterator[Recording]:
    """Record a layer's next run within a context.

    Args:
        layer: The layer; nothing of it is changed.

    Yields:
        The recording, filled when the layer has run.
    """
    recording = Recording(layer)

    def on_layer(_: nn.Module, args: tuple[Any, ...]) -> None:
        recording.grid = args[1]
        recording.passes.clear()

    def on_prior(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # WindowAttention leaves out what its windows do not have.
        q, k, _, positions, num_prefix, key_mask, *features = (*args, 0, None)[: max(len(args), 6)]
        recording.passes.append(
            dict(q=q, k=k, positions=positions, num_prefix=num_prefix, key_mask=key_mask,
                 features=features, **kwargs)
        )  # fmt: skip

    handles = [
        layer.register_forward_pre_hook(on_layer),
        layer.prior.register_forward_pre_hook(on_prior, with_kwargs=True),
    ]
    try:
        yield recording
    finally:
        for handle in handles:
            handle.remove()


class _Windows:
    """The layout of `WindowAttention`, as those in `mmspatial.models.layers.layout`."""

    def __init__(self, window: Grid, shift: Grid) -> None:
        self.window = window
        self.shift = shift

    def padded(self, grid: Grid) -> Grid:
        """Return rows and columns of whole windows."""
        return tuple(side + -side % span for side, span in zip(grid, self.window, strict=True))

    def split(self, x: Tensor, grid: Grid) -> Tensor:
        """Turn ``(B, N, M, X)`` into ``(B, G, M, n, X)``."""
        heads = x.shape[2]
        x = x.flatten(2).unflatten(1, grid)  # (B, H, W, M * X)
        x = x.roll((-self.shift[0], -self.shift[1]), (1, 2))
        rows, columns = self.padded(grid)
        x = F.pad(x, (0, 0, 0, columns - grid[1], 0, rows - grid[0]))
        return split_windows(x, self.window).unflatten(-1, (heads, -1)).transpose(2, 3)

    def merge(self, x: Tensor, grid: Grid) -> Tensor:
        """Undo `split`."""
        heads = x.shape[2]
        x = merge_windows(x.transpose(2, 3).flatten(3), self.window, self.padded(grid))
        x = x[:, : grid[0], : grid[1]].roll(self.shift, (1, 2))
        return x.flatten(1, 2).unflatten(-1, (heads, -1))  # (B, N, M, X)


def _layouts(layer: Layer) -> Sequence[Layout | _Windows]:
    if isinstance(layer, WindowAttention):
        return (_Windows(layer.window, layer.shift),)
    return layer.layouts


def _weights(
    layer: Layer,
    layout: Layout | _Windows,
    grid: Grid,
    head: int,
    *,
    q: Tensor,
    k: Tensor,
    positions: Positions,
    num_prefix: int,
    key_mask: Tensor | None,
    features: Sequence[Tensor],
    attn_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute prior, attention without and with it, and who sees whom, for one pass and head.

    Returns:
        Four tensors that broadcast to ``(B, [G,] 1, L, L)``.
    """
    prior, one = layer.prior, slice(head, head + 1)
    queries, *features = (t[..., one, :, :] for t in (q, *features))
    bias = _bias(prior, one, queries, positions, num_prefix, *features)
    if getattr(prior, 'rotary', None) is not None:
        q, k = (prior.rotary(t, positions, num_prefix) for t in (q, k))
    logits = exact_logits(q[..., one, :, :], k[..., one, :, :], q.shape[-1] ** -0.5)
    if attn_bias is not None:
        logits = logits + attn_bias[..., one, :, :]

    seen = torch.ones_like(logits)
    if key_mask is not None:
        seen = seen * key_mask[..., None, None, :]
    if isinstance(layout, _Windows) and any(layout.shift):
        seen = seen * (shift_mask(layout.padded(grid), layout.window, layout.shift, q.device) == 0)
    logits = logits.masked_fill(seen == 0, float('-inf'))
    plain = logits.softmax(-1)
    factor = bias.exp() * seen
    if getattr(prior, 'mode', 'logit') == 'post':
        return factor, plain, plain * factor, seen
    return factor, plain, (logits + bias).softmax(-1), seen


@functools.singledispatch
def _bias(
    prior: nn.Module, head: slice, q: Tensor, positions: Positions, num_prefix: int, *_: Tensor
) -> Tensor:
    """Compute the bias of one head, from its queries and features."""
    raise NotImplementedError(f'no map is known for {type(prior).__name__}')


@_bias.register
def _(prior: DecayPrior, head: slice, q: Tensor, positions: Positions, num_prefix: int) -> Tensor:
    rates = log_decay_rates(prior.num_heads, prior.decay_init, prior.decay_range, q.device)
    return decay_bias(rates[head], positions, metric=prior.metric, num_prefix=num_prefix)


@_bias.register
def _(
    prior: GatedPrior, head: slice, q: Tensor, positions: Positions, num_prefix: int, gates: Tensor
) -> Tensor:
    gate = gates[..., num_prefix:, 0]
    return gated_bias(gate, prior.alpha[head].to(gate), positions, num_prefix=num_prefix)


@_bias.register
def _(
    prior: GaussianPrior, head: slice, q: Tensor, positions: Positions, num_prefix: int
) -> Tensor:
    alpha, var = prior.gates(q[..., num_prefix:, :], positions)
    return gaussian_bias(
        alpha, var, positions, floor=prior.floor, eps=prior.eps, num_prefix=num_prefix
    )


@_bias.register
def _(prior: NoPrior, head: slice, q: Tensor, positions: Positions, num_prefix: int) -> Tensor:
    return q.new_zeros(())


def _compose(
    matrices: Sequence[Tensor], layouts: Sequence[Layout | _Windows], grid: Grid, query: Grid
) -> Tensor:
    """Take the query's row of the product of all passes' matrices, the last pass first.

    Args:
        matrices: ``(B, [G,] 1, n, n)`` each, queries by keys.
        layouts: Of the passes.
        grid: Rows and columns of the tokens.
        query: Row and column of the token.

    Returns:
        ``(P + H·W,)``.
    """
    tokens = grid[0] * grid[1]
    # Only a pass over all tokens at once has prefix tokens.
    length = matrices[0].shape[-1] if matrices[0].dim() == 4 else tokens
    share = matrices[0].new_zeros(1, length, 1, 1)
    share[:, length - tokens + query[0] * grid[1] + query[1]] = 1
    for layout, matrix in zip(reversed(layouts), reversed(matrices), strict=True):
        split = layout.split(share, grid)  # (1, [G,] 1, n, 1)
        share = layout.merge(matrix[:1].transpose(-2, -1) @ split, grid)  # (1, L, 1, 1)
    return share[0, :, 0, 0]
