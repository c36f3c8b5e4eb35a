"""Swin's trunk, of LocAtSwin and of the ``swin_*`` archs: only the attention differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..heads.pooled import PooledClassifier
from ..layers.block import Block, Stage, drop_path_rates
from ..layers.embed import PatchEmbed, PatchMerging
from ..layers.ffn import FFN
from .arch import Arch
from .backbone import Backbone, Parts

_EPS = 1e-5


def stage_dims(arch: Arch) -> tuple[int, ...]:
    """Return the channels of each stage: ``embed_dims``, or its one width doubled per stage."""
    dims = arch['embed_dims']
    if isinstance(dims, int):
        return tuple(dims * 2**s for s in range(len(arch['depths'])))
    return tuple(dims)


def swin_parts(
    arch: Arch,
    attention: Callable[[int, int], nn.Module],
    *,
    in_channels: int,
    drop_path_rate: float | None,
    with_cp: bool,
) -> Parts:
    """Build the modules of a Swin: patches with a LayerNorm, stages, patch merging between them.

    Args:
        arch: See `Swin`.
        attention: See `Swin`.
        in_channels: Channels of the image.
        drop_path_rate: See `Swin`.
        with_cp: See `Stage`.

    Returns:
        The stages, each on a grid half as fine as the one before.
    """
    dims, depths, patch = stage_dims(arch), arch['depths'], arch.get('patch_size', 4)
    ratios = arch.get('mlp_ratios', (4,) * len(dims))
    rate = arch['drop_path_rate'] if drop_path_rate is None else drop_path_rate
    drop_paths = iter(drop_path_rates(rate, sum(depths)))

    embed = PatchEmbed(in_channels, dims[0], patch, norm_eps=_EPS)
    parts = Parts(embed=embed, dims=list(dims))
    for s, dim in enumerate(dims):
        blocks = [
            Block(
                dim,
                attention(s, i),
                FFN(dim, ratios[s]),
                drop_path=next(drop_paths),
                norm_eps=_EPS,
            )
            for i in range(depths[s])
        ]
        parts.stages.append(Stage(blocks, with_cp=with_cp))
        parts.strides.append(patch * 2**s)
        if s + 1 < len(dims):
            parts.downsamples.append(PatchMerging(dim, dims[s + 1], norm_eps=_EPS))
    return parts


class Swin(Backbone):
    """Patches of 4x4 pixels with a LayerNorm, and patch merging between stages.

    Args:
        arch: Fields ``embed_dims`` (the first width, or one per stage), ``depths,
            drop_path_rate``, and optionally ``patch_size`` (4) and ``mlp_ratios`` (4 each), see
            `resolve_arch`.
        attention: Makes the attention layer, given the stage and the block's index in it.
        in_channels: Channels of the image.
        out_indices: See `Backbone`.
        drop_path_rate: Of the last block, growing linearly from 0 at the first; None for the
            variant's own.
        frozen_stages: See `Backbone`.
        with_cp: See `Stage`.
        norm_eval: See `Backbone`.
        out_norms: Whether each output has a LayerNorm of its own; raw outputs otherwise.
        num_classes: Above 0 adds the classifier on the mean of all tokens.
        refine_heads: See `PooledClassifier`.
        init_cfg: See `Backbone`.
    """

    def __init__(
        self,
        arch: Arch,
        attention: Callable[[int, int], nn.Module],
        *,
        in_channels: int,
        out_indices: Sequence[int],
        drop_path_rate: float | None,
        frozen_stages: int | str,
        with_cp: bool,
        norm_eval: bool,
        out_norms: bool,
        num_classes: int,
        refine_heads: int | None = None,
        init_cfg: dict[str, Any] | None,
    ) -> None:
        parts = swin_parts(
            arch,
            attention,
            in_channels=in_channels,
            drop_path_rate=drop_path_rate,
            with_cp=with_cp,
        )
        dim, head = parts.dims[-1], None
        if num_classes:
            head = PooledClassifier(dim, num_classes, pool_by='mean', refine_heads=refine_heads)
        super().__init__(
            parts,
            out_indices=out_indices,
            out_norm_eps=_EPS if out_norms else None,
            final_norm=nn.LayerNorm(dim, _EPS),
            head=head,
            frozen_stages=frozen_stages,
            norm_eval=norm_eval,
            init_cfg=init_cfg,
        )
