"""The plain ViT of ViT, LocAtViT and the ``deit_*`` archs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..heads.pooled import PooledClassifier
from ..layers.block import Block, Stage, drop_path_rates
from ..layers.embed import PatchEmbed, PrefixEmbed
from ..layers.ffn import FFN
from ..layers.tokens import Grid
from .arch import Arch
from .backbone import Backbone, Parts

POSITIONS = ('learn', 'none', 'rotary')


def image_grid(arch: Arch) -> Grid:
    """Return rows and columns of whole patches in an image of the arch's ``img_size``.

    Raises:
        ValueError: If the image is smaller than a patch.
    """
    size, patch = arch['img_size'], arch['patch_size']
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < patch:
        raise ValueError(f'img_size={size} is smaller than patch_size={patch}')
    return height // patch, width // patch


def plain_parts(
    arch: Arch,
    attention: Callable[[int], nn.Module],
    *,
    in_channels: int,
    drop_path_rate: float | None,
    with_cp: bool,
) -> Parts:
    """Build the modules of a plain ViT: patch embedding and blocks, each a stage of its own.

    Args:
        arch: See `PlainViT`.
        attention: See `PlainViT`.
        in_channels: Channels of the image.
        drop_path_rate: See `PlainViT`.
        with_cp: See `Stage`.

    Returns:
        As many stages as blocks, all on one grid.

    Raises:
        ValueError: If a field of ``arch`` has no meaning.
    """
    dim, depth, patch = arch['embed_dims'], arch['depth'], arch['patch_size']
    positions = arch.get('pos_embed', 'learn')
    if positions not in POSITIONS:
        raise ValueError(f'pos_embed={positions!r}: expected one of {", ".join(POSITIONS)}')
    rate = arch['drop_path_rate'] if drop_path_rate is None else drop_path_rate
    embed = PrefixEmbed(
        PatchEmbed(in_channels, dim, patch),
        dim,
        image_grid(arch),
        num_registers=arch.get('num_registers', 0),
        positions=positions == 'learn',
    )
    blocks = [
        Block(
            dim,
            attention(i),
            FFN(dim, arch['mlp_ratio']),
            layer_scale=arch.get('layer_scale'),
            drop_path=drop_path,
        )
        for i, drop_path in enumerate(drop_path_rates(rate, depth))
    ]
    return Parts(
        embed=embed,
        stages=[Stage([block], with_cp=with_cp) for block in blocks],
        downsamples=[None] * (depth - 1),
        dims=[dim] * depth,
        strides=[patch] * depth,
    )


class PlainViT(Backbone):
    """Class token, registers and patches through blocks on one grid.

    Every block is a stage: ``out_indices`` and ``frozen_stages`` count blocks. Outputs are maps
    of the patches alone, raw unless ``final_norm``.

    Args:
        arch: Fields ``embed_dims`` (one width), ``depth, mlp_ratio, patch_size, img_size,
            drop_path_rate``, and optionally ``num_registers`` (0), ``layer_scale`` (None) and
            ``pos_embed``: ``'learn'``, or ``'none'`` or ``'rotary'`` for no position embedding
            (a rotary one is the attention's affair), see `resolve_arch`.
        attention: Makes the attention layer, given the block's index.
        in_channels: Channels of the image.
        out_indices: See `Backbone`.
        drop_path_rate: Of the last block, growing linearly from 0 at the first; None for the
            variant's own.
        frozen_stages: See `Backbone`.
        with_cp: See `Stage`.
        norm_eval: See `Backbone`.
        final_norm: Whether outputs go through the LayerNorm that a classifier would have.
        num_classes: Above 0 adds the classifier on the class token.
        refine_heads: See `PooledClassifier`.
        init_cfg: See `Backbone`.
    """

    def __init__(
        self,
        arch: Arch,
        attention: Callable[[int], nn.Module],
        *,
        in_channels: int,
        out_indices: Sequence[int],
        drop_path_rate: float | None,
        frozen_stages: int | str,
        with_cp: bool,
        norm_eval: bool,
        final_norm: bool,
        num_classes: int,
        refine_heads: int | None = None,
        init_cfg: dict[str, Any] | None,
    ) -> None:
        dim = arch['embed_dims']
        parts = plain_parts(
            arch,
            attention,
            in_channels=in_channels,
            drop_path_rate=drop_path_rate,
            with_cp=with_cp,
        )
        head = None
        if num_classes:
            head = PooledClassifier(dim, num_classes, refine_heads=refine_heads)
        super().__init__(
            parts,
            out_indices=out_indices,
            final_norm=nn.LayerNorm(dim, 1e-6),
            norm_outputs=final_norm,
            head=head,
            frozen_stages=frozen_stages,
            norm_eval=norm_eval,
            init_cfg=init_cfg,
        )
