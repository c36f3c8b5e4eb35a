"""EVT: RMT's successor with a Euclidean decay and groups of the sequence (arXiv 2604.18549).

Attention within groups of consecutive tokens and of dilated ones in turn, full in the last stage.
There is no released code. Reconstructed: the decay's place on the logits, how groups are formed
and padded, the group size, depths and ratios that meet the paper's sizes, and all of ``deit_*``;
no number of the paper has been reproduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mmspatial.registry import MODELS

from ..layers.attention import SpatialAttention
from ..layers.layout import Full, Groups, Layout
from ..layers.priors import DecayPrior
from ..trunks.arch import Arch, extend, resolve_arch
from ..trunks.carrier import PLAIN_ROWS, SWIN_ROWS, Carrier, is_pyramid

_GROUPS = (49, 49, 49, None)

VARIANTS: dict[str, Arch] = {
    'tiny': dict(
        embed_dims=(64, 128, 256, 512), depths=(2, 2, 9, 2), num_heads=(4, 4, 8, 16),
        mlp_ratios=(4, 4, 3, 3), decay_init=(2, 2, 2, 2), decay_range=(4, 4, 6, 6),
        group_sizes=_GROUPS, layer_scale=(None,) * 4, drop_path_rate=0.1),
    'small': dict(
        embed_dims=(64, 128, 256, 512), depths=(3, 5, 18, 4), num_heads=(4, 4, 8, 16),
        mlp_ratios=(4, 4, 3, 3), decay_init=(2, 2, 2, 2), decay_range=(4, 4, 6, 6),
        group_sizes=_GROUPS, layer_scale=(None,) * 4, drop_path_rate=0.15),
    'base': dict(
        embed_dims=(80, 160, 320, 512), depths=(4, 9, 25, 9), num_heads=(5, 5, 10, 16),
        mlp_ratios=(4, 4, 3, 3), decay_init=(2, 2, 2, 2), decay_range=(5, 5, 6, 6),
        group_sizes=_GROUPS, layer_scale=(None, None, 1e-6, 1e-6), drop_path_rate=0.4),
    'large': dict(
        embed_dims=(112, 224, 448, 640), depths=(4, 9, 25, 9), num_heads=(7, 7, 14, 20),
        mlp_ratios=(4, 4, 3, 3), decay_init=(2, 2, 2, 2), decay_range=(6, 6, 6, 6),
        group_sizes=_GROUPS, layer_scale=(None, None, 1e-6, 1e-6), drop_path_rate=0.55),
    **extend(PLAIN_ROWS, decay_init=2, decay_range=6),
    **extend(SWIN_ROWS, decay_init=(2,) * 4, decay_range=(6,) * 4, group_sizes=(49,) * 4),
}  # fmt: skip


@MODELS.register_module()
class EVT(Carrier):
    """EVT backbone (reconstructed, see the module's first lines).

    Args:
        arch: A name, or a dict with fields of a row, of `VARIANTS`: ``'tiny'`` to ``'large'``;
            ``'deit_*'`` and ``'swin_*'`` for the attention in a plain ViT (not grouped there) and
            in Swin.
        in_channels: Channels of the image.
        out_indices: Stages (blocks of a ``deit_*``) whose outputs are returned; None for every
            stage, or the last block. All but a plain ViT's go through a LayerNorm of their own.
        drop_path_rate: None for the variant's own.
        frozen_stages: See `Backbone`.
        with_cp: Whether training recomputes blocks in the backward pass to save memory.
        norm_eval: See `Backbone`.
        norm_cfg: Norm after convolutions in OpenMMLab's words; None for batch norm.
        decay_mode: ``'logit'`` or ``'post'``, see `mmspatial.ops.decay_attention`.
        lepe: Whether values are enhanced by a 5x5 depthwise convolution. This and the next two
            are of the pyramids; ``deit_*`` and ``swin_*`` have none of it.
        conv_ffn: Whether the feed-forward network has RMT's depthwise convolution.
        rope: Whether queries and keys are turned by RMT's rotary encoding.
        num_classes: Above 0 adds the classifier; `forward` then returns logits.
        impl: Implementation of the attention op, see `mmspatial.ops.decay_attention`.
        init_cfg: MMEngine's; ``Pretrained`` goes through `mmspatial.load_weights`.

    Raises:
        ValueError: If an argument has no meaning; the message says which values have.

    Example:
        >>> import torch
        >>> model = EVT(arch='tiny', out_indices=(2, 3))
        >>> [tuple(y.shape) for y in model(torch.randn(1, 3, 53, 77))]
        [(1, 256, 4, 5), (1, 512, 2, 3)]
    """

    variants = VARIANTS

    def __init__(
        self,
        arch: str | Mapping[str, Any] = 'tiny',
        in_channels: int = 3,
        out_indices: Sequence[int] | None = None,
        drop_path_rate: float | None = None,
        frozen_stages: int | str = -1,
        with_cp: bool = False,
        norm_eval: bool = False,
        norm_cfg: dict[str, Any] | None = None,
        decay_mode: str = 'logit',
        lepe: bool = True,
        conv_ffn: bool = False,
        rope: bool = False,
        num_classes: int = 0,
        impl: str = 'auto',
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        spec = resolve_arch('EVT', arch, VARIANTS)

        own = is_pyramid(spec)
        if not own and (conv_ffn or rope):
            raise ValueError(
                f'conv_ffn and rope are for the pyramids of EVT, not for arch {arch!r}'
            )

        def attention(fields: Arch, block: int) -> nn.Module:
            size = fields.get('group_sizes')
            layout: Layout = Groups(size, dilated=block % 2 == 1) if size else Full()
            prior = DecayPrior(
                fields['num_heads'],
                metric='euclidean',
                decay_init=fields['decay_init'],
                decay_range=fields['decay_range'],
                mode=decay_mode,
                impl=impl,
            )
            return SpatialAttention(
                fields['embed_dims'], fields['num_heads'], prior,
                layouts=(layout,), rotary=rope, lepe=lepe and own,
            )  # fmt: skip

        super().__init__(
            spec, attention, conv_ffn=conv_ffn, in_channels=in_channels, out_indices=out_indices,
            drop_path_rate=drop_path_rate, frozen_stages=frozen_stages, with_cp=with_cp,
            norm_eval=norm_eval, norm_cfg=norm_cfg, num_classes=num_classes, init_cfg=init_cfg,
        )  # fmt: skip
