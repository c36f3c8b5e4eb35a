"""The four-stage pyramid of RMT, EVT and SDT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..layers.block import Block, Stage, drop_path_rates
from ..layers.embed import ConvDownsample, ConvStem
from ..layers.ffn import FFN
from .arch import Arch
from .backbone import Parts


def pyramid_parts(
    arch: Arch,
    attention: Callable[[int, int], nn.Module],
    *,
    conv_ffn: bool,
    in_channels: int,
    drop_path_rate: float | None,
    with_cp: bool,
    norm_cfg: dict[str, Any] | None,
) -> Parts:
    """Build a convolutional stem, stages of blocks, and convolutions that halve the grid.

    Args:
        arch: Fields ``embed_dims, depths, mlp_ratios, layer_scale, drop_path_rate``, see
            `resolve_arch`.
        attention: Makes the attention layer, given the stage and the block's index in it.
        conv_ffn: See `FFN`.
        in_channels: Channels of the image.
        drop_path_rate: Of the last block, growing linearly from 0 at the first; None for the
            variant's own.
        with_cp: See `Stage`.
        norm_cfg: See `build_norm2d`.

    Returns:
        The stages, the first on a grid of stride 4.
    """
    dims, depths = arch['embed_dims'], arch['depths']
    rate = arch['drop_path_rate'] if drop_path_rate is None else drop_path_rate
    drop_paths = iter(drop_path_rates(rate, sum(depths)))

    parts = Parts(embed=ConvStem(in_channels, dims[0], norm_cfg), dims=list(dims))
    for s, dim in enumerate(dims):
        blocks = [
            Block(
                dim,
                attention(s, i),
                FFN(dim, arch['mlp_ratios'][s], conv=conv_ffn),
                cpe=True,
                layer_scale=arch['layer_scale'][s],
                drop_path=next(drop_paths),
            )
            for i in range(depths[s])
        ]
        parts.stages.append(Stage(blocks, with_cp=with_cp))
        parts.strides.append(ConvStem.stride * 2**s)
        if s + 1 < len(dims):
            parts.downsamples.append(ConvDownsample(dim, dims[s + 1], norm_cfg))
    return parts
