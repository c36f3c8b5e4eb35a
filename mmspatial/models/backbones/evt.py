"""EVT: RMT's successor with a Euclidean decay and groups of the sequence (arXiv 2604.18549).

Attention within groups of consecutive tokens and of dilated ones in turn, full in the last stage.
There is no released code. Reconstructed: the decay's place on the logits, how groups are formed
and padded, the group size, and depths and ratios that meet the paper's sizes (`MODELS` page);
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
from ..trunks.arch import Arch, resolve_arch
from ..trunks.pyramid import Pyramid

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
}  # fmt: skip


@MODELS.register_module()
class EVT(Pyramid):
    """EVT backbone (reconstructed, see the module's first lines).

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'``, or a dict with fields of a row of
            `VARIANTS`.
        in_channels: Channels of the image.
        out_indices: Stages whose outputs are returned, each through a LayerNorm.
        drop_path_rate: None for the variant's own.
        frozen_stages: See `Backbone`.
        with_cp: Whether training recomputes blocks in the backward pass to save memory.
        norm_eval: See `Backbone`.
        norm_cfg: Norm after convolutions in OpenMMLab's words; None for batch norm.
        decay_mode: ``'logit'`` or ``'post'``, see `mmspatial.ops.decay_attention`.
        lepe: Whether values are enhanced by a 5x5 depthwise convolution.
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
        out_indices: Sequence[int] = (0, 1, 2, 3),
        drop_path_rate: float | None = None,
        frozen_stages: int = -1,
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

        def attention(stage: int, block: int) -> nn.Module:
            group_size = spec['group_sizes'][stage]
            layout: Layout = Groups(group_size, dilated=block % 2 == 1) if group_size else Full()
            prior = DecayPrior(
                spec['num_heads'][stage],
                metric='euclidean',
                decay_init=spec['decay_init'][stage],
                decay_range=spec['decay_range'][stage],
                mode=decay_mode,
                impl=impl,
            )
            return SpatialAttention(
                spec['embed_dims'][stage],
                spec['num_heads'][stage],
                prior,
                layouts=(layout,),
                rotary=rope,
                lepe=lepe,
            )

        super().__init__(
            spec, attention, conv_ffn=conv_ffn, in_channels=in_channels, out_indices=out_indices,
            drop_path_rate=drop_path_rate, frozen_stages=frozen_stages, with_cp=with_cp,
            norm_eval=norm_eval, norm_cfg=norm_cfg, num_classes=num_classes, init_cfg=init_cfg,
        )  # fmt: skip
