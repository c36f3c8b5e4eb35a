"""LocAtViT: a plain ViT whose queries cast Gaussians around themselves (arXiv 2603.04892).

Each block adds to its logits a Gaussian, with weight and variances read from the query; the
classifier refines all tokens before it takes the class token (PRR).
Parity: the released implementation's outputs on random weights (`tests/models/`), to 5e-6 of
their scale. Not covered by these: `pooled` training, checked against a loop of our own, and
rotary, as the release has it (gates are read before the turn), checked against timm's RoPE-ViT
with the Gaussians off. Nothing is reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mmspatial.registry import MODELS

from ..layers.attention import SpatialAttention
from ..layers.mixed_rotary import MixedRotary
from ..layers.priors import GaussianPrior
from ..trunks.arch import Arch, resolve_arch
from ..trunks.plain import PlainViT, image_grid

VARIANTS: dict[str, Arch] = {
    'tiny': dict(
        embed_dims=192, depth=12, num_heads=3, mlp_ratio=4, patch_size=16, img_size=224,
        num_registers=0, pos_embed='learn', layer_scale=None, drop_path_rate=0.1),
    'small': dict(
        embed_dims=384, depth=12, num_heads=6, mlp_ratio=4, patch_size=16, img_size=224,
        num_registers=0, pos_embed='learn', layer_scale=None, drop_path_rate=0.2),
    'base': dict(
        embed_dims=768, depth=12, num_heads=12, mlp_ratio=4, patch_size=16, img_size=224,
        num_registers=0, pos_embed='learn', layer_scale=None, drop_path_rate=0.4),
}  # fmt: skip


@MODELS.register_module()
class LocAtViT(PlainViT):
    """LocAtViT backbone.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, or a dict with fields of a row of `VARIANTS`.
            ``img_size`` sets the grid that Gaussians and the position embedding are meant for;
            images of any size may follow. ``pos_embed`` is ``'learn'``, ``'none'``, or
            ``'rotary'`` for rotations by learned frequencies (the released rotary models also
            have ``layer_scale=1e-5``).
        in_channels: Channels of the image.
        out_indices: Blocks whose outputs are returned, as maps of the patches.
        drop_path_rate: None for the variant's own.
        frozen_stages: See `Backbone`; a block is a stage.
        with_cp: Whether training recomputes blocks in the backward pass to save memory.
        norm_eval: See `Backbone`; there are no batch norms here.
        pooled: Whether training reads the Gaussians from means of 2x2 cells, see
            `GaussianPrior`; None for where ``img_size`` has at least 32 rows of patches.
        final_norm: Whether outputs go through the LayerNorm that a classifier would have.
        num_classes: Above 0 adds the classifier; `forward` then returns logits.
        impl: Implementation of the attention op, see `mmspatial.ops.gaussian_attention`.
        init_cfg: MMEngine's; ``Pretrained`` goes through `mmspatial.load_weights`.

    Raises:
        ValueError: If an argument has no meaning; the message says which values have.

    Example:
        >>> import torch
        >>> model = LocAtViT(arch='tiny', out_indices=(5, 11))
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
        pooled: bool | None = None,
        final_norm: bool = False,
        num_classes: int = 0,
        impl: str = 'auto',
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        spec = resolve_arch('LocAtViT', arch, VARIANTS)
        dim, num_heads, grid = spec['embed_dims'], spec['num_heads'], image_grid(spec)

        def attention(block: int) -> nn.Module:
            rotary = None
            if spec['pos_embed'] == 'rotary':
                rotary = MixedRotary(num_heads, dim // num_heads)
            prior = GaussianPrior(dim // num_heads, grid, pooled=pooled, rotary=rotary, impl=impl)
            return SpatialAttention(dim, num_heads, prior)

        super().__init__(
            spec, attention, in_channels=in_channels, out_indices=out_indices,
            drop_path_rate=drop_path_rate, frozen_stages=frozen_stages, with_cp=with_cp,
            norm_eval=norm_eval, final_norm=final_norm, num_classes=num_classes,
            refine_heads=num_heads, init_cfg=init_cfg,
        )  # fmt: skip
