from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from golden import StateDict, randomise, read_golden, relative_error, worst_error
from torch import Tensor

from mmspatial import load_weights
from mmspatial.models import AliasFreeViT
from mmspatial.models.backbones.aliasfree import VARIANTS
from mmspatial.models.layers.alias_free import TokenNorm

FILES = ('afvit_p16', 'afvit_p8')


def build(config: dict[str, Any], **options: Any) -> AliasFreeViT:
    """Build our model, with all outputs, from the official configuration's words."""
    arch = dict(
        embed_dims=config['embed_dim'], depth=config['depth'], num_heads=config['num_heads'],
        mlp_ratio=config['mlp_ratio'], patch_size=config['patch_size'],
    )  # fmt: skip
    options.setdefault('num_classes', config['num_classes'])
    return AliasFreeViT(arch=arch, out_indices=range(config['depth']), **options).eval()


@pytest.mark.smoke
@pytest.mark.parametrize('impl', ['auto', 'reference'])
@pytest.mark.parametrize('name', FILES)
def test_released_outputs(name: str, impl: str) -> None:
    config, weights, cases = read_golden(name)
    model = build(config, impl=impl)
    report = load_weights(model, weights)
    assert report.scheme == 'Alias-Free ViT release'
    assert report.fraction == 1
    assert not report.missing
    assert not report.unexpected
    single = worst_error(model, cases, 'block')
    double = worst_error(model.double(), cases, 'block')
    print(f'{name}, {impl}: relative parity error {single:.1e}, in double precision {double:.1e}')
    assert single <= 5e-6
    assert double <= 5e-6


def test_released_outputs_when_compiled() -> None:
    config, weights, cases = read_golden('afvit_p8')
    model = build({**config, 'depth': 1}, num_classes=0)
    report = load_weights(model, weights)
    assert not report.unexpected
    assert {'head.cls_token', 'stages.1.blocks.0.ls1.gamma'} <= set(report.skipped)
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    with torch.no_grad():
        (y,) = compiled(cases['case0']['input'])
    assert relative_error(y, cases['case0']['block0']) <= 5e-6


class Oracle:
    """The published definition in plain functions over official keys, float64."""

    def __init__(self, config: dict[str, Any], weights: StateDict) -> None:
        self.config = config
        self.weights = {key: value.double() for key, value in weights.items()}

    @staticmethod
    def resample_axis(x: Tensor, new: int) -> Tensor:
        """Resample the last axis by the sums of the discrete Fourier transform."""
        old = x.shape[-1]
        limit = min(old, new) / 2
        k = torch.tensor([k for k in range(-old, old + 1) if abs(k) < limit]).double()
        weight = torch.ones_like(k)
        if new > old and old % 2 == 0:
            k, weight = F.pad(k, (1, 1)), F.pad(weight, (1, 1), value=0.5)
            k[0], k[-1] = -old / 2, old / 2
        analysis = torch.exp(-2j * math.pi * k[:, None] * torch.arange(old) / old)
        synthesis = torch.exp(2j * math.pi * k * torch.arange(new)[:, None] / new)
        spectrum = weight * torch.einsum('kj,...j->...k', analysis, x.to(analysis.dtype)) / old
        y = torch.einsum('mk,...k->...m', synthesis, spectrum)
        assert y.imag.abs().max() < 1e-9
        return y.real

    def resample(self, x: Tensor, height: int, width: int) -> Tensor:
        return self.resample_axis(self.resample_axis(x, width).mT, height).mT

    def up_gelu(self, x: Tensor, reduction: int = 1) -> Tensor:
        height, width = x.shape[-2:]
        y = self.resample(x, 2 * height, 2 * width)
        y = y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
        return self.resample(y, height // reduction, width // reduction)

    def conv(self, x: Tensor, key: str) -> Tensor:
        """Sum nine shifted maps."""
        weight, bias = self.weights[f'{key}.weight'], self.weights.get(f'{key}.bias')
        total = torch.zeros((), dtype=x.dtype)
        for i, j in itertools.product(range(3), repeat=2):
            shifted = x.roll((1 - i, 1 - j), (-2, -1))
            if weight.shape[1] == 1:
                total = total + shifted * weight[:, 0, i, j][:, None, None]
            else:
                total = total + torch.einsum('oc,bchw->bohw', weight[:, :, i, j], shifted)
        return total if bias is None else total + bias[:, None, None]

    def batch_norm(self, x: Tensor, key: str) -> Tensor:
        mean, var, weight, bias = (
            self.weights[f'{key}.{word}'][:, None, None]
            for word in ('running_mean', 'running_var', 'weight', 'bias')
        )
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias

    def linear(self, x: Tensor, key: str) -> Tensor:
        return x @ self.weights[f'{key}.weight'].T + self.weights[f'{key}.bias']

    def norm(self, x: Tensor, key: str) -> Tensor:
        x = x - x.mean(1, keepdim=True)
        x = x / (x.square().mean((1, 2), keepdim=True) + 1e-6).sqrt()
        return x * self.weights[f'{key}.weight'] + self.weights[f'{key}.bias']

    def attention(self, x: Tensor, key: str) -> Tensor:
        heads = self.config['num_heads']
        batch, tokens, dim = x.shape
        qkv = self.linear(x, f'{key}.qkv').view(batch, tokens, 3, heads, dim // heads)
        q, k, v = qkv.permute(2, 0, 3, 4, 1)
        q, k = (y / y.norm(dim=-1, keepdim=True).clamp_min(1e-12) for y in (q, k))
        attention = (q @ k.mT * self.weights[f'{key}.temperature']).softmax(-1)
        out = (attention @ v).permute(0, 3, 1, 2).reshape(batch, tokens, dim)
        return self.linear(out, f'{key}.proj')

    def block(self, x: Tensor, grid: torch.Size, key: str) -> Tensor:
        def as_map(t: Tensor) -> Tensor:
            return t.mT.reshape(len(t), -1, *grid)

        def as_tokens(t: Tensor) -> Tensor:
            return t.flatten(2).mT

        w = self.weights
        x = x + w[f'{key}.gamma1'] * self.attention(self.norm(x, f'{key}.norm1'), f'{key}.attn')
        y = self.conv(as_map(self.norm(x, f'{key}.norm3')), f'{key}.local_mp.conv1')
        y = self.batch_norm(self.up_gelu(y), f'{key}.local_mp.norm')
        x = x + w[f'{key}.gamma3'] * as_tokens(self.conv(y, f'{key}.local_mp.conv2'))
        y = self.linear(self.norm(x, f'{key}.norm2'), f'{key}.mlp.fc1')
        y = as_tokens(self.up_gelu(as_map(y)))
        return x + w[f'{key}.gamma2'] * self.linear(y, f'{key}.mlp.fc2')

    def __call__(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        patch = self.config['patch_size']
        x = F.pad(x.double(), (0, -x.shape[3] % patch, 0, -x.shape[2] % patch))
        for i in range(0, 2 * int(math.log2(patch)), 2):
            x = self.conv(x, f'patch_embed.proj.{i}.0')
            x = self.up_gelu(self.batch_norm(x, f'patch_embed.proj.{i}.1'), 2)
        grid, x = x.shape[2:], x.flatten(2).mT
        maps = []
        for i in range(self.config['depth']):
            x = self.block(x, grid, f'blocks.{i}')
            maps.append(x.mT.reshape(len(x), -1, *grid))

        w = self.weights
        x = torch.cat((w['cls_token'].expand(len(x), -1, -1), x), 1)
        for i in range(2):
            key = f'cls_attn_blocks.{i}'
            x = x + w[f'{key}.gamma1'] * self.attention(self.norm(x, f'{key}.norm1'), f'{key}.attn')
            x = self.norm(x, f'{key}.norm2')
            hidden = F.gelu(self.linear(x[:, :1], f'{key}.mlp.fc1'))
            update = w[f'{key}.gamma2'] * self.linear(hidden, f'{key}.mlp.fc2')
            x = x + torch.cat((update, x[:, 1:]), 1)
        x = F.layer_norm(x[:, 0], x.shape[-1:], w['norm.weight'], w['norm.bias'], 1e-6)
        return maps, self.linear(x, 'head')


def test_the_oracle_is_the_release() -> None:
    config, weights, cases = read_golden('afvit_p16')
    maps, logits = Oracle(config, weights)(cases['case0']['input'])
    for i, y in enumerate(maps):
        assert relative_error(y, cases['case0'][f'block{i}']) <= 5e-6
    assert relative_error(logits, cases['case0']['logits']) <= 5e-6


@pytest.mark.parametrize('impl', ['auto', 'reference'])
@pytest.mark.parametrize('name', FILES)
def test_other_sizes(name: str, impl: str) -> None:
    """Not square, odd grids, mixed parities, padded, smaller than a patch."""
    config, weights, _ = read_golden(name)
    model, oracle = build(config, impl=impl), Oracle(config, weights)
    load_weights(model, weights)
    worst = {torch.float32: 0.0, torch.float64: 0.0}
    for size in ((48, 80), (96, 32), (53, 77), (112, 49), (5, 40), (1, 1)):
        x = torch.randn(2, 3, *size)
        maps, logits = oracle(x)
        for dtype in worst:
            model.to(dtype)
            with torch.no_grad():
                found = [*model.feature_maps(x.to(dtype)), model(x.to(dtype))]
            pairs = zip(found, [*maps, logits], strict=True)
            errors = [relative_error(y, expected) for y, expected in pairs]
            worst[dtype] = max(worst[dtype], *errors)
    print(f'{name}, {impl}: relative errors on other sizes {worst}')
    assert worst[torch.float32] <= 2e-5
    assert worst[torch.float64] <= 1e-11


def count(dim: int, depth: int, heads: int, patch: int, classes: int) -> int:
    """Add up the definition's parameters."""
    widths = [3] + [dim >> step for step in reversed(range(int(math.log2(patch))))]
    stem = sum(9 * a * b + 2 * b for a, b in itertools.pairwise(widths))
    attention = heads + (dim + 1) * 4 * dim
    mlp = (dim + 1) * 4 * dim + (4 * dim + 1) * dim
    local = 2 * (9 + 1) * dim + 2 * dim
    norms_and_scales = 3 * dim
    block = attention + mlp + local + 3 * norms_and_scales
    class_block = attention + mlp + 2 * norms_and_scales
    head = dim + 2 * class_block + 2 * dim + (dim + 1) * classes if classes else 0
    return stem + depth * block + head


def test_parameter_counts() -> None:
    for name, row in VARIANTS.items():
        sizes = [row[word] for word in ('embed_dims', 'depth', 'num_heads', 'patch_size')]
        for classes in (0, 1000):
            with torch.device('meta'):
                model = AliasFreeViT(arch=name, num_classes=classes)
            found = sum(p.numel() for p in model.parameters())
            print(f'{name}, {classes} classes: {found:,} parameters')
            assert found == count(*sizes, classes)
            assert model.out_channels == (row['embed_dims'],)
            assert model.out_strides == (row['patch_size'],)


def without_nyquist(x: Tensor) -> Tensor:
    """Leave out what an even grid cannot shift by a fraction."""
    spectrum = torch.fft.fft2(x)
    spectrum[..., x.shape[-2] // 2, :] = 0
    spectrum[..., x.shape[-1] // 2] = 0
    return torch.fft.ifft2(spectrum).real


def noise(size: tuple[int, int]) -> Tensor:
    """Make a white image, the hardest one for shifts."""
    return without_nyquist(torch.randn(2, 3, *size, dtype=torch.float64))


def smooth(size: tuple[int, int]) -> Tensor:
    """Make an image with the 1/f spectrum of photographs."""
    fy, fx = (torch.fft.fftfreq(n, dtype=torch.float64) for n in size)
    frequency = torch.hypot(fy[:, None], fx).clamp_min(1 / max(size))
    image = torch.fft.ifft2(torch.fft.fft2(noise(size)) / frequency).real
    return image / image.std()


def shift(x: Tensor, by: tuple[float, float]) -> Tensor:
    """Shift a periodic map by any distance, through the phases of its spectrum."""
    fy, fx = (torch.fft.fftfreq(n, dtype=x.dtype) for n in x.shape[-2:])
    phase = torch.exp(-2j * math.pi * (fy[:, None] * by[0] + fx * by[1]))
    return torch.fft.ifft2(torch.fft.fft2(x) * phase).real


def shift_error(model: AliasFreeViT, x: Tensor, by: tuple[float, float]) -> float:
    """Compare features of a shifted image with shifted features of the image."""
    dtype, patch = next(model.parameters()).dtype, model.out_strides[0]
    with torch.no_grad():
        still, moved = (model(y.to(dtype))[0].double() for y in (x, shift(x, by)))
    return relative_error(moved, shift(still, (by[0] / patch, by[1] / patch)))


@pytest.mark.parametrize('arch', ['nano', 'nano_p8'])
def test_shifts_by_whole_patches_change_nothing(arch: str) -> None:
    model = AliasFreeViT(arch=arch).eval()
    patch = model.out_strides[0]
    worst = 0.0
    for size in ((6 * patch, 4 * patch), (5 * patch, 3 * patch)):
        x = torch.randn(2, 3, *size)
        with torch.no_grad():
            (still,) = model(x)
            for by in ((1, 0), (0, 1), (2, -1)):
                (moved,) = model(x.roll((by[0] * patch, by[1] * patch), (2, 3)))
                worst = max(worst, relative_error(moved, still.roll(by, (2, 3))))
    print(f'{arch}: error after shifts by patches {worst:.1e}')
    assert worst <= 1e-4


@pytest.mark.parametrize('image', [noise, smooth], ids=['noise', '1/f'])
@pytest.mark.parametrize('arch', ['nano', 'nano_p8'])
def test_other_shifts_change_ten_times_less_than_in_plain_xcit(arch: str, image: Any) -> None:
    """The plain network has the same weights: GELU for up_gelu, strided convolutions."""
    model = AliasFreeViT(arch=arch).eval()
    plain = AliasFreeViT(arch=arch, alias_free=False).eval()
    plain.load_state_dict(model.state_dict())
    patch = model.out_strides[0]
    for size in ((6 * patch, 8 * patch), (7 * patch, 5 * patch)):
        x = image(size)
        for by in ((0.5, 0.5), (1, 0), (0, 1)):
            ours, theirs = shift_error(model, x, by), shift_error(plain, x, by)
            print(f'{arch} {size} shifted by {by} pixels: {ours:.1e}, plain XCiT {theirs:.1e}')
            assert ours <= 0.1 * theirs
        # The plain one does commute with what its strides allow: the comparison is fair.
        assert shift_error(plain, x, (patch, -patch)) <= 1e-4


def test_token_norm_has_one_scale_for_the_map() -> None:
    norm = TokenNorm(4).double()
    randomise(norm)
    x = torch.randn(2, 5, 4, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + 7
    centred = x - x.mean(1, keepdim=True)
    for sample, expected in zip(norm(x), centred, strict=True):
        scale = (expected.square().sum() / 20 + 1e-6).sqrt()
        torch.testing.assert_close(sample, expected / scale * norm.weight + norm.bias)


def test_low_precision_weights() -> None:
    model = AliasFreeViT(arch=dict(embed_dims=32, depth=2)).eval()
    x = torch.randn(2, 3, 48, 80)
    with torch.no_grad():
        (expected,) = model(x)
        (low,) = model.bfloat16()(x.bfloat16())
    assert low.dtype == torch.bfloat16
    assert relative_error(low, expected) <= 0.05


def test_patch_sizes() -> None:
    for patch in (2, 4, 32):
        model = AliasFreeViT(arch=dict(embed_dims=32, depth=1, patch_size=patch))
        assert model(torch.randn(2, 3, 33, 64))[0].shape[2:] == (-(-33 // patch), 64 // patch)
    for patch in (1, 12, 128):
        with pytest.raises(ValueError, match=f'patch_size={patch} must be a power of two'):
            AliasFreeViT(arch=dict(embed_dims=32, patch_size=patch))
    with pytest.raises(ValueError, match='30 channels cannot be divided into 4 heads'):
        AliasFreeViT(arch=dict(embed_dims=30, patch_size=2))
