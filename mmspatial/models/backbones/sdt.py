"""SDT: RMT with a decay that tokens set themselves (AAAI 2026, arXiv 2508.09525).

Each token has a gate per head, read from the block's normed input; a pair decays with distance
at the mean of its two gates. Everything else is RMT's.
There is no released code. Reconstructed: what surrounds the attention, the decay's place on the
logits, which stages are decomposed, and how gates and alpha begin: such that a fresh SDT is an
RMT with the same weights (checked to 5e-7). No number of the paper has been reproduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mmspatial.registry import MODELS

from ..layers.attention import SpatialAttention
from ..layers.layout import Columns, Full, Rows
from ..layers.priors import GatedPrior
from ..trunks.arch import Arch, extend, resolve_arch
from ..trunks.carrier import Carrier, is_pyramid
from .rmt import VARIANTS as RMT_VARIANTS

VARIANTS: dict[str, Arch] = {
    **extend(RMT_VARIANTS, 'tiny', 'small', 'base', decomposed=(True, True, False, False)),
    **extend(RMT_VARIANTS, 'deit_tiny', 'deit_small', 'deit_base'),
}


@MODELS.register_module()
class SDT(Carrier):
    """SDT backbone (reconstructed, see the module's first lines).

    Args:
        arch: A name, or a dict with fields of a row, of `VARIANTS`: ``'tiny'`` to ``'base'``;
            ``'deit_*'`` for the decay in a plain ViT.
        in_channels: Channels of the image.
        out_indices: Stages (blocks of a ``deit_*``) whose outputs are returned; None for every
            stage, or the last block. All but a plain ViT's go through a LayerNorm of their own.
        drop_path_rate: None for the variant's own.
        frozen_stages: See `Backbone`.
        with_cp: Whether training recomputes blocks in the backward pass to save memory.
        norm_eval: See `Backbone`.
        norm_cfg: Norm after convolutions in OpenMMLab's words; None for batch norm.
        num_classes: Above 0 adds the classifier; `forward` then returns logits.
        impl: Implementation of the attention op, see `mmspatial.ops.gated_attention`.
        init_cfg: MMEngine's; ``Pretrained`` goes through `mmspatial.load_weights`.

    Raises:
        ValueError: If an argument has no meaning; the message says which values have.

    Example:
        >>> import torch
        >>> model = SDT(arch='tiny', out_indices=(2, 3))
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
        num_classes: int = 0,
        impl: str = 'auto',
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        spec = resolve_arch('SDT', arch, VARIANTS)
        own = is_pyramid(spec)

        def attention(fields: Arch, block: int) -> nn.Module:
            prior = GatedPrior(
                fields['embed_dims'],
                fields['num_heads'],
                decay_init=fields['decay_init'],
                decay_range=fields['decay_range'],
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
