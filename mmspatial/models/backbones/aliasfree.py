"""Alias-Free ViT: XCiT that commutes with cyclic shifts, fractional ones too (arXiv 2510.22673).

No position embedding; attention between channels; circular convolutions; norms with statistics of
the whole map; and non-linearities and strides on maps upsampled first, so that they do not alias.
Parity: outputs on random weights of the published definition (`tests/models/`), to 5e-6 of their
scale. Maps that are not square follow each axis's own parity, where the release takes the width's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from mmspatial.registry import MODELS

from ..layers.alias_free import (
    AliasFreeGELU,
    CircularConv,
    CrossCovariance,
    LocalInteraction,
    MapFFN,
    TokenNorm,
)
from ..layers.block import LayerScale, Stage
from ..layers.conv import fuse_norm_after
from ..layers.embed import pad_to_multiple
from ..layers.ffn import FFN
from ..layers.inplace import add_to_branch
from ..layers.norm import build_norm2d
from ..layers.tokens import Grid, to_tokens
from ..trunks.arch import Arch, resolve_arch
from ..trunks.backbone import Backbone, Parts

# `img_size` is the size of pretraining images; no weight depends on it.
VARIANTS: dict[str, Arch] = {
    'tiny': dict(
        embed_dims=192, depth=12, num_heads=4, mlp_ratio=4, patch_size=16, img_size=224,
        drop_path_rate=0.0),
    'small': dict(
        embed_dims=384, depth=12, num_heads=8, mlp_ratio=4, patch_size=16, img_size=224,
        drop_path_rate=0.05),
    'nano': dict(
        embed_dims=128, depth=12, num_heads=4, mlp_ratio=4, patch_size=16, img_size=224,
        drop_path_rate=0.0),
    'nano_p8': dict(
        embed_dims=128, depth=12, num_heads=4, mlp_ratio=4, patch_size=8, img_size=224,
        drop_path_rate=0.0),
}  # fmt: skip


class AliasFreeStem(nn.Sequential):
    """Circular convolution, batch norm and GELU per factor 2 of the patch size.

    Args:
        in_channels: Channels of the image.
        dim: Channels C of the tokens; each step doubles those of the one before.
        patch_size: Pixels per token, a power of two.
        alias_free: False for strided convolutions and plain GELU.
        norm_cfg: See `build_norm2d`.
        impl: See `AliasFreeGELU`.

    Raises:
        ValueError: If the patch size is no power of two, or does not fit the channels.
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        patch_size: int,
        *,
        alias_free: bool,
        norm_cfg: dict[str, Any] | None,
        impl: str,
    ) -> None:
        steps = patch_size.bit_length() - 1
        if steps < 1 or patch_size != 2**steps or dim % (patch_size // 2):
            raise ValueError(
                f'patch_size={patch_size} must be a power of two, and half of it divide {dim} '
                f'channels'
            )
        layers: list[nn.Module] = []
        channels = in_channels
        for step in reversed(range(steps)):
            conv = CircularConv(channels, dim // 2**step, stride=1 if alias_free else 2, bias=False)
            channels = dim // 2**step
            layers += [
                nn.Sequential(conv, build_norm2d(channels, norm_cfg)),
                AliasFreeGELU(2, impl) if alias_free else nn.GELU(),
            ]
        super().__init__(*layers)
        self.patch_size = patch_size

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Map ``(B, in_channels, h, w)`` to ``(B, H·W, C)`` and ``(H, W)``, rounded up."""
        x = pad_to_multiple(x, self.patch_size)
        x = super().forward(x.contiguous(memory_format=torch.channels_last))
        return to_tokens(x), (x.shape[2], x.shape[3])

    def fuse_for_inference(self) -> None:
        """Fold the norms into the convolutions."""
        for step in list(self)[::2]:
            step[0], step[1] = fuse_norm_after(step[0], step[1])


class AliasFreeBlock(nn.Module):
    """Attention between channels, local interaction, feed-forward, each residual and pre-normed.

    ::

        x += ls1(attn(norm1(x)));  x += ls3(lpi(norm3(x)));  x += ls2(ffn(norm2(x)))

    Numbered as the release does; each branch has its drop path.

    Args:
        dim: Channels C.
        num_heads: Heads M.
        mlp_ratio: Hidden width of the feed-forward network over C.
        alias_free: See `AliasFreeViT`.
        drop_path: Probability with which training drops a branch of a sample.
        norm_cfg: See `build_norm2d`.
        impl: See `AliasFreeViT`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float,
        *,
        alias_free: bool,
        drop_path: float,
        norm_cfg: dict[str, Any] | None,
        impl: str,
    ) -> None:
        super().__init__()

        def act() -> nn.Module:
            return AliasFreeGELU(impl=impl) if alias_free else nn.GELU()

        self.norm1 = TokenNorm(dim)
        self.attn = CrossCovariance(dim, num_heads, impl)
        self.ls1 = LayerScale(dim, 1.0)
        self.norm3 = TokenNorm(dim)
        self.lpi = LocalInteraction(dim, act(), norm_cfg)
        self.ls3 = LayerScale(dim, 1.0)
        self.norm2 = TokenNorm(dim)
        self.ffn = MapFFN(dim, mlp_ratio, act())
        self.ls2 = LayerScale(dim, 1.0)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, H·W, C)`` to the same shape."""
        x = add_to_branch(self.drop_path(self.ls1(self.attn(self.norm1(x)))), x)
        x = add_to_branch(self.drop_path(self.ls3(self.lpi(self.norm3(x), grid))), x)
        return add_to_branch(self.drop_path(self.ls2(self.ffn(self.norm2(x), grid))), x)

    def fuse_for_inference(self) -> None:
        """Fold the layer scales into the layers before them."""
        if isinstance(self.ls1, LayerScale):
            self.ls1 = self.ls1.fold_into(self.attn.proj)
            self.ls3 = self.ls3.fold_into(self.lpi.conv2)
            self.ls2 = self.ls2.fold_into(self.ffn.fc2)


class ClassBlock(nn.Module):
    """A block of the classifier: the class token gathers, the patches are only normed.

    ::

        x = norm2(x + ls1(attn(norm1(x))));  x += (ls2(mlp(class token)), patches)

    so that patches are doubled, as released.

    Args:
        dim: Channels C.
        num_heads: Heads M.
        mlp_ratio: Hidden width of the feed-forward network over C.
        impl: See `AliasFreeViT`.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, impl: str) -> None:
        super().__init__()
        self.norm1 = TokenNorm(dim)
        self.attn = CrossCovariance(dim, num_heads, impl)
        self.ls1 = LayerScale(dim, 1.0)
        self.norm2 = TokenNorm(dim)
        self.ffn = FFN(dim, mlp_ratio)
        self.ls2 = LayerScale(dim, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, 1 + N, C)``, the class token first, to the same shape."""
        x = self.norm2(x + self.ls1(self.attn(self.norm1(x))))
        token, patches = x[:, :1], x[:, 1:]
        token = token + self.ls2(self.ffn(token, (1, 1)))
        return torch.cat((token, 2 * patches), 1)


class ClassAttentionClassifier(nn.Module):
    """A class token through two blocks, LayerNorm and Linear.

    Args:
        dim: Channels C.
        num_classes: Number of logits.
        num_heads: See `ClassBlock`.
        mlp_ratio: See `ClassBlock`.
        impl: See `ClassBlock`.
    """

    def __init__(
        self, dim: int, num_classes: int, num_heads: int, mlp_ratio: float, impl: str
    ) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.blocks = nn.ModuleList(ClassBlock(dim, num_heads, mlp_ratio, impl) for _ in range(2))
        self.norm = nn.LayerNorm(dim, 1e-6)
        self.fc = nn.Linear(dim, num_classes)

    def pool(self, tokens: Tensor) -> Tensor:
        """Map ``(B, N, C)`` to what the last layer reads, ``(B, C)``."""
        x = torch.cat((self.cls_token.expand(len(tokens), -1, -1), tokens), 1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x[:, 0])

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ``(B, N, C)`` to ``(B, num_classes)``."""
        return self.fc(self.pool(tokens))


@MODELS.register_module()
class AliasFreeViT(Backbone):
    """Alias-Free ViT backbone; every block is a stage, and outputs are raw.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'nano'``, ``'nano_p8'``, or a dict with fields of a row
            of `VARIANTS`.
        in_channels: Channels of the image.
        out_indices: Blocks whose outputs are returned.
        drop_path_rate: Of all blocks alike; None for the variant's own.
        frozen_stages: See `Backbone`, in blocks.
        with_cp: Whether training recomputes blocks in the backward pass to save memory.
        norm_eval: See `Backbone`.
        norm_cfg: Norm after convolutions in OpenMMLab's words; None for batch norm.
        alias_free: False for the same network with plain GELU and strided convolutions in the
            stem, to compare with.
        num_classes: Above 0 adds the classifier; `forward` then returns logits.
        impl: Implementation of the ops, see `mmspatial.ops.resample`.
        init_cfg: MMEngine's; ``Pretrained`` goes through `mmspatial.load_weights`.

    Raises:
        ValueError: If an argument has no meaning; the message says which values have.

    Example:
        >>> import torch
        >>> model = AliasFreeViT(arch='nano', out_indices=(5, 11))
        >>> [tuple(y.shape) for y in model(torch.randn(1, 3, 53, 77))]
        [(1, 128, 4, 5), (1, 128, 4, 5)]
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
        norm_cfg: dict[str, Any] | None = None,
        alias_free: bool = True,
        num_classes: int = 0,
        impl: str = 'auto',
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        spec = resolve_arch('AliasFreeViT', arch, VARIANTS)
        dim, depth, patch = spec['embed_dims'], spec['depth'], spec['patch_size']
        sizes = (spec['num_heads'], spec['mlp_ratio'])
        parts = Parts(
            embed=AliasFreeStem(
                in_channels, dim, patch, alias_free=alias_free, norm_cfg=norm_cfg, impl=impl
            ),
            downsamples=[None] * (depth - 1),
            dims=[dim] * depth,
            strides=[patch] * depth,
        )
        for _ in range(depth):
            block = AliasFreeBlock(
                dim,
                *sizes,
                alias_free=alias_free,
                drop_path=spec['drop_path_rate'] if drop_path_rate is None else drop_path_rate,
                norm_cfg=norm_cfg,
                impl=impl,
            )
            parts.stages.append(Stage([block], with_cp=with_cp))
        super().__init__(
            parts,
            out_indices=out_indices,
            head=ClassAttentionClassifier(dim, num_classes, *sizes, impl) if num_classes else None,
            frozen_stages=frozen_stages,
            norm_eval=norm_eval,
            init_cfg=init_cfg,
        )
