"""The trunks that carry the priors of RMT, EVT and SDT: their pyramid, a plain ViT, a Swin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..heads.classifier import ProjectionClassifier
from ..heads.pooled import PooledClassifier
from .arch import Arch, at_stage
from .backbone import Backbone
from .plain import plain_parts
from .pyramid import pyramid_parts
from .swin import swin_parts

# DeiT's and Swin's sizes; a backbone adds the fields of its prior.
PLAIN_ROWS: dict[str, Arch] = {
    f'deit_{size}': dict(
        embed_dims=dim, depth=12, num_heads=dim // 64, mlp_ratio=4, patch_size=16, img_size=224,
        drop_path_rate=0.1)
    for size, dim in (('tiny', 192), ('small', 384), ('base', 768))
}  # fmt: skip
SWIN_ROWS: dict[str, Arch] = {
    f'swin_{size}': dict(
        embed_dims=(dim, 2 * dim, 4 * dim, 8 * dim), depths=depths,
        num_heads=tuple(dim * 2**s // 32 for s in range(4)), mlp_ratios=(4,) * 4, patch_size=4,
        drop_path_rate=rate)
    for size, dim, depths, rate in (
        ('tiny', 96, (2, 2, 6, 2), 0.2),
        ('small', 96, (2, 2, 18, 2), 0.3),
        ('base', 128, (2, 2, 18, 2), 0.5),
    )
}  # fmt: skip


def is_plain(arch: Arch) -> bool:
    """Say whether an arch is a plain ViT's: it counts its blocks in one ``depth``."""
    return 'depth' in arch


def is_pyramid(arch: Arch) -> bool:
    """Say whether an arch is a pyramid's: it cuts no patches."""
    return 'patch_size' not in arch


class Carrier(Backbone):
    """A backbone on the trunk that the fields of its arch are those of.

    Only the pyramid has what surrounds attention in RMT: convolutional stem, positional encoding
    by convolution, a norm of its own on each output. The others are as in DeiT, with raw outputs,
    and in Swin, with a norm on each output; in them nothing but the attention is new.

    Args:
        arch: See `pyramid_parts`, `plain_parts` and `swin_parts`.
        attention: Makes the attention layer, given the stage's fields of ``arch`` and the
            block's index in the stage.
        conv_ffn: See `FFN`; of the pyramid.
        in_channels: Channels of the image.
        out_indices: See `Backbone`; None for every stage, or a plain ViT's last block.
        drop_path_rate: Of the last block, growing linearly from 0 at the first; None for the
            variant's own.
        frozen_stages: See `Backbone`.
        with_cp: See `Stage`.
        norm_eval: See `Backbone`.
        norm_cfg: See `build_norm2d`; of the pyramid.
        num_classes: Above 0 adds the trunk's classifier.
        init_cfg: See `Backbone`.
    """

    def __init__(
        self,
        arch: Arch,
        attention: Callable[[Arch, int], nn.Module],
        *,
        conv_ffn: bool,
        in_channels: int,
        out_indices: Sequence[int] | None,
        drop_path_rate: float | None,
        frozen_stages: int | str,
        with_cp: bool,
        norm_eval: bool,
        norm_cfg: dict[str, Any] | None,
        num_classes: int,
        init_cfg: dict[str, Any] | None,
    ) -> None:
        def at(stage: int, block: int) -> nn.Module:
            return attention(at_stage(arch, stage), block)

        options: dict[str, Any] = dict(
            in_channels=in_channels, drop_path_rate=drop_path_rate, with_cp=with_cp
        )
        out_norm_eps: float | None = 1e-5
        final_norm = head = None
        if is_pyramid(arch):
            parts = pyramid_parts(arch, at, conv_ffn=conv_ffn, norm_cfg=norm_cfg, **options)
            if num_classes:
                head = ProjectionClassifier(parts.dims[-1], num_classes)
        elif is_plain(arch):
            parts = plain_parts(arch, lambda block: attention(arch, block), **options)
            out_norm_eps, final_norm = None, nn.LayerNorm(parts.dims[-1], 1e-6)
            if num_classes:
                head = PooledClassifier(parts.dims[-1], num_classes)
        else:
            parts = swin_parts(arch, at, **options)
            final_norm = nn.LayerNorm(parts.dims[-1], 1e-5)
            if num_classes:
                head = PooledClassifier(parts.dims[-1], num_classes, pool_by='mean')
        if out_indices is None:
            out_indices = (-1,) if is_plain(arch) else range(len(parts.stages))
        super().__init__(
            parts,
            out_indices=out_indices,
            out_norm_eps=out_norm_eps,
            final_norm=final_norm,
            head=head,
            frozen_stages=frozen_stages,
            norm_eval=norm_eval,
            init_cfg=init_cfg,
        )
