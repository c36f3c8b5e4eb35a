"""RMT: vision transformer with a Manhattan decay (CVPR 2024, arXiv 2309.11523).

Attention within rows, then columns, in the early stages; full in the late ones.
Parity: the released implementation's outputs on random weights (`tests/models/`), to 5e-6 of
their scale; ``decay_mode='post'`` is the paper's formula, which no release has.
Reconstructed: the ``deit_*`` and ``swin_*`` archs, which differ from DeiT and Swin in nothing but
the decay: no rotary encoding, local enhancement or convolutions. Their ``decay_range`` and which
stages are decomposed are our choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mmspatial.registry import MODELS

from ..layers.attention import SpatialAttention
from ..layers.layout import Columns, Full, Rows
from ..layers.priors import DecayPrior
from ..trunks.arch import Arch, extend, resolve_arch
from ..trunks.carrier import PLAIN_ROWS, SWIN_ROWS, Carrier, is_pyramid

VARIANTS: dict[str, Arch] = {
    'tiny': dict(
        embed_dims=(64, 128, 256, 512), depths=(2, 2, 8, 2), num_heads=(4, 4, 8, 16),
        mlp_ratios=(3, 3, 3, 3), decay_init=(2, 2, 2, 2), decay_range=(4, 4, 6, 6),
        decomposed=(True, True, False, False), layer_scale=(None,) * 4, drop_path_rate=0.1),
    'small': dict(
        embed_dims=(64, 128, 256, 512), depths=(3, 4, 18, 4), num_heads=(4, 4, 8, 16),
        mlp_ratios=(4, 4, 3, 3), decay_init=(2, 2, 2, 2), decay_range=(4, 4, 6, 6),
        decomposed=(True, True, True, False), layer_scale=(None,) * 4, drop_path_rate=0.15),
    'base': dict(
        embed_dims=(80, 160, 320, 512), depths=(4, 8, 25, 8), num_heads=(5, 5, 10, 16),
        mlp_ratios=(4, 4, 3, 3), decay_init=(2, 2, 2, 2), decay_range=(5, 5, 6, 6),
        decomposed=(True, True, True, False), layer_scale=(None, None, 1e-6, 1e-6),
        drop_path_rate=0.4),
    'large': dict(
        embed_dims=(112, 224, 448, 640), depths=(4, 8, 25, 8), num_heads=(7, 7, 14, 20),
        mlp_ratios=(4, 4, 3, 3), decay_init=(2, 2, 2, 2), decay_range=(6, 6, 6, 6),
        decomposed=(True, True, True, False), layer_scale=(None, None, 1e-6, 1e-6),
        drop_path_rate=0.5),
    **extend(PLAIN_ROWS, decay_init=2, decay_range=6),
    **extend(
        SWIN_ROWS, 'swin_tiny', 'swin_small',
        decay_init=(2,) * 4, decay_range=(6,) * 4, decomposed=(True, True, False, False)),
}  # fmt: skip


@MODELS.register_module()
class RMT(Carrier):
    """RMT backbone.

    Args:
        arch: A name, or a dict with fields of a row, of `VARIANTS`: ``'tiny'`` to ``'large'``;
            ``'deit_*'`` and ``'swin_*'`` for the decay in a plain ViT and in Swin.
        in_channels: Channels of the image.
        out_indices: Stages (blocks of a ``deit_*``) whose outputs are returned; None for every
            stage, or the last block. All but a plain ViT's go through a LayerNorm of their own.
        drop_path_rate: None for the variant's own.
        frozen_stages: See `Backbone`.
        with_cp: Whether training recomputes blocks in the backward pass to save memory.
        norm_eval: See `Backbone`.
        norm_cfg: Norm after convolutions in OpenMMLab's words; None for batch norm.
        decay_mode: ``'logit'`` (released) or ``'post'`` (as the paper prints it).
        num_classes: Above 0 adds the classifier; `forward` then returns logits.
        impl: Implementation of the attention op, see `mmspatial.ops.decay_attention`.
        init_cfg: MMEngine's; ``Pretrained`` goes through `mmspatial.load_weights`.

    Raises:
        ValueError: If an argument has no meaning; the message says which values have.

    Example:
        >>> import torch
        >>> model = RMT(arch='tiny', out_indices=(2, 3))
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
        num_classes: int = 0,
        impl: str = 'auto',
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        spec = resolve_arch('RMT', arch, VARIANTS)

        own = is_pyramid(spec)

        def attention(fields: Arch, block: int) -> nn.Module:
            prior = DecayPrior(
                fields['num_heads'],
                metric='manhattan',
                decay_init=fields['decay_init'],
                decay_range=fields['decay_range'],
                mode=decay_mode,
                impl=impl,
            )
            layouts = (Rows(), Columns()) if fields.get('decomposed') else (Full(),)
            return SpatialAttention(
                fields['embed_dims'], fields['num_heads'], prior,
                layouts=layouts, rotary=own, lepe=own,
            )  # fmt: skip

        super().__init__(
            spec, attention, conv_ffn=True, in_channels=in_channels, out_indices=out_indices,
            drop_path_rate=drop_path_rate, frozen_stages=frozen_stages, with_cp=with_cp,
            norm_eval=norm_eval, norm_cfg=norm_cfg, num_classes=num_classes, init_cfg=init_cfg,
        )  # fmt: skip
