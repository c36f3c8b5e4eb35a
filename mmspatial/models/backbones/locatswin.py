"""LocAtSwin: LocAtViT's Gaussians inside the windows of a Swin (arXiv 2603.04892).

The Gaussian comes on top of Swin's own table of offsets; there are no prefix tokens.
Parity: the released implementation's outputs on random weights (`tests/models/`), to 5e-6 of
their scale. Nothing is reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mmspatial.registry import MODELS

from ..layers.priors import GaussianPrior
from ..layers.window import WindowAttention
from ..trunks.arch import Arch, resolve_arch
from ..trunks.plain import image_grid
from ..trunks.swin import Swin, stage_dims

VARIANTS: dict[str, Arch] = {
    'tiny': dict(
        embed_dims=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), window_size=7,
        img_size=224, patch_size=4, drop_path_rate=0.1),
    'base': dict(
        embed_dims=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32), window_size=7,
        img_size=224, patch_size=4, drop_path_rate=0.4),
}  # fmt: skip


@MODELS.register_module()
class LocAtSwin(Swin):
    """LocAtSwin backbone.

    Args:
        arch: ``'tiny'``, ``'base'``, or a dict with fields of a row of `VARIANTS`; ``embed_dims``
            is the first stage's width, doubled per stage. ``img_size`` sets the windows: none is
            larger than its stage's grid there, and where one covers the grid it is not shifted.
            Images of any size may follow.
        in_channels: Channels of the image.
        out_indices: Stages whose outputs are returned, raw.
        drop_path_rate: None for the variant's own.
        frozen_stages: See `Backbone`.
        with_cp: Whether training recomputes blocks in the backward pass to save memory.
        norm_eval: See `Backbone`; there are no batch norms here.
        num_classes: Above 0 adds the classifier; `forward` then returns logits.
        impl: Implementation of the attention op, see `mmspatial.ops.gaussian_attention`.
        init_cfg: MMEngine's; ``Pretrained`` goes through `mmspatial.load_weights`.

    Raises:
        ValueError: If an argument has no meaning; the message says which values have.

    Example:
        >>> import torch
        >>> model = LocAtSwin(arch='tiny', out_indices=(2, 3))
        >>> [tuple(y.shape) for y in model(torch.randn(1, 3, 53, 77))]
        [(1, 384, 4, 5), (1, 768, 2, 3)]
    """

    variants = VARIANTS

    def __init__(
        self,
        arch: str | Mapping[str, Any] = 'tiny',
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        drop_path_rate: float | None = None,
        frozen_stages: int | str = -1,
        with_cp: bool = False,
        norm_eval: bool = False,
        num_classes: int = 0,
        impl: str = 'auto',
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        spec = resolve_arch('LocAtSwin', arch, VARIANTS)
        dims, num_heads, grid, size = (
            stage_dims(spec), spec['num_heads'], image_grid(spec), spec['window_size'],
        )  # fmt: skip

        def attention(stage: int, block: int) -> nn.Module:
            sides = [max(side // 2**stage, 1) for side in grid]
            window = tuple(min(side, size) for side in sides)
            shift = tuple(size // 2 if block % 2 and side > size else 0 for side in sides)
            prior = GaussianPrior(dims[stage] // num_heads[stage], window, impl=impl)
            return WindowAttention(dims[stage], num_heads[stage], prior, window=window, shift=shift)

        super().__init__(
            spec, attention, in_channels=in_channels, out_indices=out_indices,
            drop_path_rate=drop_path_rate, frozen_stages=frozen_stages, with_cp=with_cp,
            norm_eval=norm_eval, out_norms=False, num_classes=num_classes,
            refine_heads=num_heads[-1], init_cfg=init_cfg,
        )  # fmt: skip
