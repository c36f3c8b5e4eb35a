"""ViT: the plain vision transformer that the priors are compared with (arXiv 2010.11929).

LocAtViT without its Gaussians and without the refinement of its classifier; timm's, whose weights
it takes as they are.
Parity: timm's outputs on random weights (`tests/models/`), to 1e-5. Nothing is reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mmspatial.registry import MODELS

from ..layers.attention import SpatialAttention
from ..layers.priors import NoPrior
from ..trunks.arch import Arch, resolve_arch
from ..trunks.plain import PlainViT
from .locatvit import VARIANTS as LOCATVIT_VARIANTS

VARIANTS: dict[str, Arch] = dict(LOCATVIT_VARIANTS)


@MODELS.register_module()
class ViT(PlainViT):
    """Plain ViT backbone.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, or a dict with fields of a row of `VARIANTS`.
            ``img_size`` sets the grid that the position embedding is kept for; images of any
            size may follow. ``pos_embed`` is ``'learn'`` or ``'none'``.
        in_channels: Channels of the image.
        out_indices: Blocks whose outputs are returned, as maps of the patches.
        drop_path_rate: None for the variant's own.
        frozen_stages: See `Backbone`; a block is a stage.
        with_cp: Whether training recomputes blocks in the backward pass to save memory.
        norm_eval: See `Backbone`; there are no batch norms here.
        final_norm: Whether outputs go through the LayerNorm that a classifier would have.
        num_classes: Above 0 adds the classifier; `forward` then returns logits.
        impl: Implementation of the attention op, see `mmspatial.ops.plain_attention`.
        init_cfg: MMEngine's; ``Pretrained`` goes through `mmspatial.load_weights`.

    Raises:
        ValueError: If an argument has no meaning; the message says which values have.

    Example:
        >>> import torch
        >>> model = ViT(arch='tiny', out_indices=(5, 11))
        >>> [tuple(y.shape) for y in model(torch.randn(1, 3, 53, 77))]
        [(1, 192, 4, 5), (1, 192, 4, 5)]
    """

    variants = VARIANTS

    def __init__(
        self,
        arch: str | Mapping[str, Any] = 'tiny',
        in_channels: int = 3,
        out_indices: Sequence[int] = (-1,),
        drop_path_rate: float | None = None,
        frozen_stages: int | str = -1,
        with_cp: bool = False,
        norm_eval: bool = False,
        final_norm: bool = False,
        num_classes: int = 0,
        impl: str = 'auto',
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        spec = resolve_arch('ViT', arch, VARIANTS)
        if spec['pos_embed'] == 'rotary':
            raise ValueError("pos_embed='rotary' is LocAtViT's; ViT has 'learn' and 'none'")

        def attention(block: int) -> nn.Module:
            return SpatialAttention(spec['embed_dims'], spec['num_heads'], NoPrior(impl))

        super().__init__(
            spec, attention, in_channels=in_channels, out_indices=out_indices,
            drop_path_rate=drop_path_rate, frozen_stages=frozen_stages, with_cp=with_cp,
            norm_eval=norm_eval, final_norm=final_norm, num_classes=num_classes,
            init_cfg=init_cfg,
        )  # fmt: skip
