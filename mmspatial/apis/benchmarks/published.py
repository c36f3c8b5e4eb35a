"""Whole backbones as their authors compute them, to measure against.

Everything that ours save is there: three projections for q, k and v, masks and rotary tables built
from index grids in every forward, an exponential for every pair of tokens, two-dimensional FFTs,
copies between layouts. Our own writing after the releases, by whose names weights go; outputs equal
ours with the same weights (`tests/tools/test_bench_backbones.py`). Without drop path and
classifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from mmspatial.key_schemes import SCHEMES, to_theirs
from mmspatial.models.backbones.aliasfree import VARIANTS as ALIASFREE
from mmspatial.models.backbones.locatvit import VARIANTS as LOCATVIT
from mmspatial.models.backbones.rmt import VARIANTS as RMT
from mmspatial.models.layers.embed import pad_to_multiple
from mmspatial.models.layers.priors.gaussian import bounded_variance, gaussian_limits
from mmspatial.models.trunks.arch import Arch, at_stage, resolve_arch
from mmspatial.models.trunks.backbone import Backbone
from mmspatial.models.trunks.carrier import is_pyramid
from mmspatial.models.trunks.plain import image_grid

from . import published_ops as ops

Masks = tuple[Tensor, ...]


def published_form(model: Backbone, arch: str | Mapping[str, Any]) -> nn.Module | None:
    """Build the published formulation of a backbone of ours, with its weights.

    Args:
        model: An RMT, LocAtViT or AliasFreeViT with its default outputs.
        arch: The arch that it was built with.

    Returns:
        A module on images which returns the same maps; None where nothing is published: another
        backbone, or an arch that no release has.
    """
    name = type(model).__name__
    if name not in _FORMS:
        return None
    variants, scheme, form = _FORMS[name]
    spec = resolve_arch(name, arch, variants)
    if name == 'RMT' and not is_pyramid(spec):
        return None
    if name == 'LocAtViT' and (spec['pos_embed'] != 'learn' or spec['layer_scale']):
        return None
    published = form(spec)
    published.load_state_dict(to_theirs(model.state_dict(), SCHEMES[scheme]))
    return published


class _MapConv(nn.Module):
    """Depthwise convolution of channels-last maps."""

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, H, W, C)`` to the same shape."""
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class _Retention(nn.Module):
    """RMT's attention, full or within rows and then columns."""

    def __init__(self, dim: int, num_heads: int, decomposed: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.decomposed = decomposed
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.lepe = _MapConv(dim, 5)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, sin: Tensor, cos: Tensor, masks: Masks) -> Tensor:
        """Map ``(B, H, W, C)`` to the same shape; tables are ``(H, W, D)``."""
        batch, height, width, dim = x.shape
        shape = (batch, height, width, self.num_heads, dim // self.num_heads)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        local = self.lepe(v)
        k = k * shape[-1] ** -0.5
        q, k = (t.view(shape).permute(0, 3, 1, 2, 4) for t in (q, k))  # (B, M, H, W, D)
        q, k = (t * cos + _turn(t) * sin for t in (q, k))
        v = v.reshape(shape)
        if self.decomposed:
            v = _attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(2, 3), masks[1])
            q, k = (t.permute(0, 3, 1, 2, 4) for t in (q, k))  # (B, W, M, H, D)
            v = _attend(q, k, v.permute(0, 3, 2, 1, 4), masks[0])
            out = v.permute(0, 3, 1, 2, 4).flatten(-2)  # (B, H, W, C)
        else:
            v = v.permute(0, 3, 1, 2, 4).flatten(2, 3)  # (B, M, N, D)
            out = _attend(q.flatten(2, 3), k.flatten(2, 3), v, masks[0])
            out = out.transpose(1, 2).reshape(batch, height, width, dim)
        return self.out_proj(out + local)


def _turn(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) + mask).softmax(-1) @ v


class _MapFFN(nn.Module):
    """RMT's feed-forward network."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = _MapConv(hidden, 3)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, H, W, C)`` to the same shape."""
        x = F.gelu(self.fc1(x))
        return self.fc2(self.dwconv(x) + x)


class _RetentionBlock(nn.Module):
    """A block of RMT."""

    def __init__(self, stage: Arch) -> None:
        super().__init__()
        dim = stage['embed_dims']
        self.pos = _MapConv(dim, 3)
        self.retention_layer_norm = nn.LayerNorm(dim, 1e-6)
        self.retention = _Retention(dim, stage['num_heads'], stage['decomposed'])
        self.final_layer_norm = nn.LayerNorm(dim, 1e-6)
        self.ffn = _MapFFN(dim, int(dim * stage['mlp_ratios']))
        self.gamma_1 = self.gamma_2 = None
        if stage['layer_scale'] is not None:
            self.gamma_1 = nn.Parameter(torch.ones(1, 1, 1, dim))
            self.gamma_2 = nn.Parameter(torch.ones(1, 1, 1, dim))

    def forward(self, x: Tensor, sin: Tensor, cos: Tensor, masks: Masks) -> Tensor:
        """Map ``(B, H, W, C)`` to the same shape."""
        x = x + self.pos(x)
        branch = self.retention(self.retention_layer_norm(x), sin, cos, masks)
        x = x + (branch if self.gamma_1 is None else self.gamma_1 * branch)
        branch = self.ffn(self.final_layer_norm(x))
        return x + (branch if self.gamma_2 is None else self.gamma_2 * branch)


class _Reduction(nn.Module):
    """Between RMT's stages."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.reduction = nn.Conv2d(dim, out_dim, 3, 2, 1)
        self.norm = nn.BatchNorm2d(out_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, H, W, C)`` to half the rows and columns."""
        x = x.permute(0, 3, 1, 2).contiguous()
        return self.norm(self.reduction(x)).permute(0, 2, 3, 1)


class _RetentionStage(nn.Module):
    """A stage of RMT, which builds rotary tables and masks once per forward."""

    def __init__(self, stage: Arch, out_dim: int | None) -> None:
        super().__init__()
        dim, heads = stage['embed_dims'], stage['num_heads']
        self.decomposed = stage['decomposed']
        self.blocks = nn.ModuleList(_RetentionBlock(stage) for _ in range(stage['depths']))
        self.downsample = None if out_dim is None else _Reduction(dim, out_dim)
        angle = 1.0 / 10000 ** torch.linspace(0, 1, dim // heads // 2)
        steps = stage['decay_init'] + stage['decay_range'] * torch.arange(heads) / heads
        self.register_buffer('angle', angle.repeat_interleave(2), persistent=False)
        self.register_buffer('rates', torch.log(1 - 2**-steps), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, H, W, C)`` to the same shape."""
        height, width = x.shape[1:3]
        phase = torch.arange(height * width).to(self.angle)[:, None] * self.angle
        sin, cos = (f(phase).view(height, width, -1) for f in (torch.sin, torch.cos))
        if self.decomposed:
            masks: Masks = (ops.line_mask(height, self.rates), ops.line_mask(width, self.rates))
        else:
            masks = (ops.distance_mask(height, width, self.rates),)
        for block in self.blocks:
            x = block(x, sin, cos, masks)
        return x


class PublishedRMT(nn.Module):
    """RMT as released.

    Args:
        spec: All fields of a row of RMT's variants.
    """

    def __init__(self, spec: Arch) -> None:
        super().__init__()
        dims = spec['embed_dims']
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Sequential()
        channels = 3
        for out, stride in ((dims[0] // 2, 2), (dims[0] // 2, 1), (dims[0], 2), (dims[0], 1)):
            conv = nn.Conv2d(channels, out, 3, stride, 1)
            self.patch_embed.proj.extend([conv, nn.BatchNorm2d(out), nn.GELU()])
            channels = out
        del self.patch_embed.proj[-1]
        self.layers = nn.ModuleList(
            _RetentionStage(at_stage(spec, s), dims[s + 1] if s + 1 < len(dims) else None)
            for s in range(len(dims))
        )
        self.extra_norms = nn.ModuleList(nn.LayerNorm(dim) for dim in dims)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map images to a map ``(B, C, H, W)`` per stage."""
        x = self.patch_embed.proj(x).permute(0, 2, 3, 1)  # (B, H, W, C)
        maps = []
        for layer, norm in zip(self.layers, self.extra_norms, strict=True):
            x = layer(x)
            maps.append(norm(x).permute(0, 3, 1, 2).contiguous())  # (B, C, H, W)
            if layer.downsample is not None:
                x = layer.downsample(x)
        return tuple(maps)


class _GaussianAttention(nn.Module):
    """LocAtViT's attention: the bias of all pairs, given to PyTorch's own."""

    def __init__(self, spec: Arch) -> None:
        super().__init__()
        dim, self.num_heads = spec['embed_dims'], spec['num_heads']
        self.grid0 = image_grid(spec)
        self.floor, self.eps = gaussian_limits(self.grid0)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.gaug = nn.Module()
        self.gaug.log_var = nn.Linear(dim // self.num_heads, 2)
        self.gaug.log_alpha = nn.Linear(dim // self.num_heads, 1)
        self.offsets: dict[Any, Tensor] = {}

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map ``(B, L, C)`` to the same shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        prefix = x.shape[1] - grid[0] * grid[1]
        queries = q[..., prefix:, :]
        var = bounded_variance(self.gaug.log_var(queries), self.grid0)
        if grid != self.grid0:
            var = var * (min(grid) / min(self.grid0))
        alpha = F.softplus(self.gaug.log_alpha(queries).float()).squeeze(-1)
        with torch.autocast(x.device.type, enabled=False):
            bias = ops.gaussian_bias(
                alpha, var.float(), self._offsets(grid, x.device), self.eps, prefix
            )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.proj(out.transpose(1, 2).flatten(2))  # (B, L, C)

    def _offsets(self, grid: tuple[int, int], device: torch.device) -> Tensor:
        """Return the one table that the release keeps, in every block its own."""
        key = grid, device
        if key not in self.offsets:
            self.offsets = {key: ops.gaussian_offsets(*grid, self.floor, device, torch.float32)}
        return self.offsets[key]


class _TwoLayers(nn.Module):
    """A plain feed-forward network."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)


class _GaussianBlock(nn.Module):
    """A block of LocAtViT."""

    def __init__(self, spec: Arch) -> None:
        super().__init__()
        dim = spec['embed_dims']
        self.norm1 = nn.LayerNorm(dim, 1e-6)
        self.attn = _GaussianAttention(spec)
        self.norm2 = nn.LayerNorm(dim, 1e-6)
        self.mlp = _TwoLayers(dim, int(dim * spec['mlp_ratio']))

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map ``(B, L, C)`` to the same shape."""
        x = x + self.attn(self.norm1(x), grid)
        return x + self.mlp.fc2(F.gelu(self.mlp.fc1(self.norm2(x))))


class PublishedLocAtViT(nn.Module):
    """LocAtViT as released, on timm's ViT.

    Args:
        spec: All fields of a row of LocAtViT's variants.
    """

    def __init__(self, spec: Arch) -> None:
        super().__init__()
        dim, self.patch = spec['embed_dims'], spec['patch_size']
        grid = image_grid(spec)
        self.num_prefix = 1 + spec['num_registers']
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, dim, self.patch, self.patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.reg_token = None
        if spec['num_registers']:
            self.reg_token = nn.Parameter(torch.zeros(1, spec['num_registers'], dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.num_prefix + grid[0] * grid[1], dim))
        self.blocks = nn.ModuleList(_GaussianBlock(spec) for _ in range(spec['depth']))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map images to the last block's map ``(B, C, H, W)``."""
        x = self.patch_embed.proj(pad_to_multiple(x, self.patch))
        grid = (x.shape[2], x.shape[3])
        x = x.flatten(2).transpose(1, 2)  # (B, N, C)
        prefix = [t for t in (self.cls_token, self.reg_token) if t is not None]
        x = torch.cat((*(t.expand(len(x), -1, -1) for t in prefix), x), 1)  # (B, L, C)
        x = x + resample_abs_pos_embed(
            self.pos_embed, list(grid), num_prefix_tokens=self.num_prefix
        )
        for block in self.blocks:
            x = block(x, grid)
        x = x[:, self.num_prefix :].transpose(1, 2).unflatten(2, grid)  # (B, C, H, W)
        return (x.contiguous(),)


class _UpGELU(nn.Module):
    """GELU on the upsampled map, through FFTs."""

    def __init__(self, reduction: int = 1) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to the same shape, or a smaller one in the stem."""
        return ops.downsample(F.gelu(ops.upsample(x, 2)), 2 * self.reduction)


def _circular(dim: int, out_dim: int, *, groups: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(dim, out_dim, 3, padding=1, groups=groups, bias=bias, padding_mode='circular')


class _GlobalNorm(nn.Module):
    """Alias-Free ViT's norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, N, C)`` to the same shape."""
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean((1, 2), keepdim=True)
        return self.weight * ((x - mean) / torch.sqrt(variance + 1e-6)) + self.bias


class _XCA(nn.Module):
    """XCiT's attention."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, N, C)`` to the same shape."""
        heads = self.temperature.shape[0]
        q, k, v = self.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        out = ops.cross_covariance(q, k, v, self.temperature)
        return self.proj(out.transpose(1, 2).reshape(x.shape))


class _LocalPatches(nn.Module):
    """XCiT's local patch interaction, alias-free."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = _circular(dim, dim, groups=dim)
        self.act = _UpGELU()
        self.norm = nn.BatchNorm2d(dim)
        self.conv2 = _circular(dim, dim, groups=dim)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map ``(B, N, C)`` to the same shape."""
        image = x.permute(0, 2, 1).unflatten(2, grid).contiguous()
        image = self.conv2(self.norm(self.act(self.conv1(image))))
        return image.flatten(2).permute(0, 2, 1)


class _XCABlock(nn.Module):
    """A block of Alias-Free ViT."""

    def __init__(self, spec: Arch) -> None:
        super().__init__()
        dim = spec['embed_dims']
        self.norm1, self.norm2, self.norm3 = (_GlobalNorm(dim) for _ in range(3))
        self.attn = _XCA(dim, spec['num_heads'])
        self.local_mp = _LocalPatches(dim)
        self.mlp = _TwoLayers(dim, int(dim * spec['mlp_ratio']))
        self.act = _UpGELU()
        self.gamma1, self.gamma2, self.gamma3 = (nn.Parameter(torch.ones(dim)) for _ in range(3))

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map ``(B, N, C)`` to the same shape."""
        x = x + self.gamma1 * self.attn(self.norm1(x))
        x = x + self.gamma3 * self.local_mp(self.norm3(x), grid)
        hidden = self.mlp.fc1(self.norm2(x)).transpose(1, 2).unflatten(2, grid)  # (B, C, H, W)
        hidden = self.act(hidden.contiguous()).flatten(2).transpose(1, 2)  # (B, N, C)
        return x + self.gamma2 * self.mlp.fc2(hidden)


class PublishedAliasFreeViT(nn.Module):
    """Alias-Free ViT as released, but that each axis goes by its own parity.

    Args:
        spec: All fields of a row of Alias-Free ViT's variants.
    """

    def __init__(self, spec: Arch) -> None:
        super().__init__()
        dim, self.patch = spec['embed_dims'], spec['patch_size']
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Sequential()
        channels = 3
        for step in reversed(range(self.patch.bit_length() - 1)):
            out = dim // 2**step
            conv = _circular(channels, out, bias=False)
            self.patch_embed.proj.extend([nn.Sequential(conv, nn.BatchNorm2d(out)), _UpGELU(2)])
            channels = out
        self.blocks = nn.ModuleList(_XCABlock(spec) for _ in range(spec['depth']))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map images to the last block's map ``(B, C, H, W)``."""
        x = self.patch_embed.proj(pad_to_multiple(x, self.patch))
        grid = (x.shape[2], x.shape[3])
        x = x.flatten(2).transpose(1, 2)  # (B, N, C)
        for block in self.blocks:
            x = block(x, grid)
        return (x.transpose(1, 2).unflatten(2, grid).contiguous(),)


# By the name of our class: variants, the release's names of weights, the formulation.
_FORMS: dict[str, tuple[dict[str, Arch], str, Callable[[Arch], nn.Module]]] = {
    'RMT': (RMT, 'rmt', PublishedRMT),
    'LocAtViT': (LOCATVIT, 'timm-vit', PublishedLocAtViT),
    'AliasFreeViT': (ALIASFREE, 'alias-free', PublishedAliasFreeViT),
}
