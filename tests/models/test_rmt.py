from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from golden import Golden, StateDict, read_golden, relative_error
from torch import Tensor, nn

from mmspatial import load_weights
from mmspatial.models import RMT
from mmspatial.models.backbones.rmt import VARIANTS
from mmspatial.models.layers.position import apply_rotary

FILES = ('rmt_decomposed3', 'rmt_decomposed2_layerscale')
PARAMETERS = {'tiny': 14_334_216, 'small': 26_967_240, 'base': 54_154_896, 'large': 95_464_864}


def build(config: dict[str, Any], **options: Any) -> RMT:
    """Build our model from the official configuration's words."""
    scales = [config['layer_init_values'] if on else None for on in config['layerscales']]
    arch = dict(
        embed_dims=config['embed_dims'], depths=config['depths'], num_heads=config['num_heads'],
        mlp_ratios=config['mlp_ratios'], decay_init=config['init_values'],
        decay_range=config['heads_ranges'], decomposed=config['chunkwise_recurrents'],
        layer_scale=scales,
    )  # fmt: skip
    return RMT(arch=arch, **options)


@pytest.fixture(params=FILES)
def golden(
    request: pytest.FixtureRequest,
) -> Golden:
    return read_golden(request.param)


def errors(model: nn.Module, cases: dict[str, StateDict], dtype: torch.dtype) -> list[float]:
    """Compute the relative error of each output of each case."""
    with torch.no_grad():
        return [
            relative_error(y, case[f'stage{i}'])
            for case in cases.values()
            for i, y in enumerate(model(case['input'].to(dtype)))
        ]


@pytest.mark.smoke
@pytest.mark.parametrize('impl', ['auto', 'reference'])
def test_released_outputs(golden: Golden, impl: str) -> None:
    config, weights, cases = golden
    model = build(config, impl=impl)
    report = load_weights(model, weights)
    assert report.scheme == 'RMT release'
    assert report.fraction == 1
    assert not report.missing
    assert not report.unexpected
    found = errors(model.eval(), cases, torch.float32)
    print(f'relative parity errors ({impl}): {found}')
    assert max(found) <= 5e-6


def test_released_outputs_in_double_precision(
    golden: Golden,
) -> None:
    config, weights, cases = golden
    model = build(config)
    load_weights(model, weights)
    assert max(errors(model.eval().double(), cases, torch.float64)) <= 5e-6


def test_released_outputs_when_compiled() -> None:
    config, weights, cases = read_golden(FILES[1])
    model = build(config)
    load_weights(model, weights)
    compiled = torch.compile(model.eval(), fullgraph=True, backend='eager')
    assert max(errors(compiled, cases, torch.float32)) <= 5e-6


class Oracle:
    """RMT as its paper's release computes it, from official keys, in plain functions."""

    def __init__(self, config: dict[str, Any], weights: StateDict) -> None:
        self.config = config
        self.weights = {key: value.double() for key, value in weights.items()}

    def conv(self, x: Tensor, key: str, stride: int = 1) -> Tensor:
        weight = self.weights[f'{key}.weight']
        groups = x.shape[1] // weight.shape[1]
        pad = weight.shape[-1] // 2
        return F.conv2d(x, weight, self.weights[f'{key}.bias'], stride, pad, groups=groups)

    def bn(self, x: Tensor, key: str) -> Tensor:
        w = self.weights
        mean, var = w[f'{key}.running_mean'], w[f'{key}.running_var']
        x = (x.movedim(1, -1) - mean) / (var + 1e-5).sqrt()
        return (x * w[f'{key}.weight'] + w[f'{key}.bias']).movedim(-1, 1)

    def linear(self, x: Tensor, key: str) -> Tensor:
        return x @ self.weights[f'{key}.weight'].T + self.weights[f'{key}.bias']

    def norm(self, x: Tensor, key: str, eps: float) -> Tensor:
        x = (x - x.mean(-1, True)) / (x.var(-1, keepdim=True, correction=0) + eps).sqrt()
        return x * self.weights[f'{key}.weight'] + self.weights[f'{key}.bias']

    def on_map(self, x: Tensor, key: str) -> Tensor:
        return self.conv(x.permute(0, 3, 1, 2), key).permute(0, 2, 3, 1)

    def rotary(self, x: Tensor) -> Tensor:
        """Turn ``(B, H, W, M, D)``: complex numbers times exp(i * t * angle)."""
        batch, height, width, heads, d = x.shape
        # In float32, as released models do: the angle's rounding is part of the model.
        angle = (1.0 / 10000 ** torch.linspace(0, 1, d // 2)).float()
        phase = (torch.arange(height * width).float()[:, None] * angle).double()
        turn = torch.polar(torch.ones_like(phase), phase).view(height, width, 1, -1)
        pairs = torch.view_as_complex(x.reshape(batch, height, width, heads, -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    def attend(self, x: Tensor, key: str, stage: int) -> Tensor:
        heads = self.config['num_heads'][stage]
        start, span = self.config['init_values'][stage], self.config['heads_ranges'][stage]
        decay = torch.log(1 - 2 ** (-start - span * torch.arange(heads).double() / heads))
        q, k, v = (self.linear(x, f'{key}.{p}_proj') for p in 'qkv')
        local = self.on_map(v, f'{key}.lepe.conv')
        q, k, v = (t.unflatten(-1, (heads, -1)) for t in (q, k, v))
        q, k = self.rotary(q), self.rotary(k * k.shape[-1] ** -0.5)
        rows, cols = (torch.arange(n).double() for n in x.shape[1:3])
        dy, dx = (rows[:, None] - rows).abs(), (cols[:, None] - cols).abs()
        decay = decay[:, None, None]
        if self.config['chunkwise_recurrents'][stage]:
            along = torch.einsum('byxmd,byzmd->bymxz', q, k) + decay * dx
            v = torch.einsum('bymxz,byzmd->byxmd', along.softmax(-1), v)
            down = torch.einsum('byxmd,bzxmd->bxmyz', q, k) + decay * dy
            v = torch.einsum('bxmyz,bzxmd->byxmd', down.softmax(-1), v)
        else:
            dist = dy[:, None, :, None] + dx[None, :, None, :]  # (H, W, H, W)
            logits = torch.einsum('byxmd,bzwmd->bmyxzw', q, k) + decay[..., None, None] * dist
            weights = logits.flatten(-2).softmax(-1).view_as(logits)
            v = torch.einsum('bmyxzw,bzwmd->byxmd', weights, v)
        return self.linear(v.flatten(-2) + local, f'{key}.out_proj')

    def ffn(self, x: Tensor, key: str) -> Tensor:
        x = F.gelu(self.linear(x, f'{key}.fc1'))
        return self.linear(x + self.on_map(x, f'{key}.dwconv.conv'), f'{key}.fc2')

    def last_stage(self, image: Tensor) -> Iterator[Tensor]:
        """Yield each stage's tokens ``(B, H, W, C)``."""
        x = image.double()
        for n, stride in enumerate((2, 1, 2, 1)):
            x = self.conv(x, f'patch_embed.proj.{3 * n}', stride)
            x = self.bn(x, f'patch_embed.proj.{3 * n + 1}')
            x = F.gelu(x) if n < 3 else x
        x = x.permute(0, 2, 3, 1)
        for s, depth in enumerate(self.config['depths']):
            for i in range(depth):
                key = f'layers.{s}.blocks.{i}'
                g1, g2 = (self.weights.get(f'{key}.gamma_{n}', 1.0) for n in (1, 2))
                x = x + self.on_map(x, f'{key}.pos.conv')
                y = self.norm(x, f'{key}.retention_layer_norm', 1e-6)
                x = x + g1 * self.attend(y, f'{key}.retention', s)
                y = self.norm(x, f'{key}.final_layer_norm', 1e-6)
                x = x + g2 * self.ffn(y, f'{key}.ffn')
            yield x
            if s + 1 < len(self.config['depths']):
                x = self.conv(x.permute(0, 3, 1, 2), f'layers.{s}.downsample.reduction', 2)
                x = self.bn(x, f'layers.{s}.downsample.norm').permute(0, 2, 3, 1)

    def maps(self, image: Tensor) -> list[Tensor]:
        """Compute the dense outputs."""
        stages = enumerate(self.last_stage(image))
        return [self.norm(x, f'extra_norms.{s}', 1e-5).permute(0, 3, 1, 2) for s, x in stages]

    def logits(self, image: Tensor) -> Tensor:
        """Compute the classifier's logits."""
        *_, x = self.last_stage(image)
        x = self.bn(self.linear(x, 'proj').permute(0, 3, 1, 2), 'norm')
        return self.linear((x * x.sigmoid()).mean((2, 3)), 'head')


@pytest.mark.parametrize('size', [(1, 1), (53, 77), (64, 30)], ids=str)
def test_any_size_equals_an_independent_computation(golden: Golden, size: tuple[int, int]) -> None:
    config, weights, _ = golden
    model = build(config).eval()
    load_weights(model, weights)
    image = torch.randn(2, 3, *size)
    with torch.no_grad():
        for out, expected in zip(model(image), Oracle(config, weights).maps(image), strict=True):
            assert out.shape == expected.shape
            assert (out - expected).abs().max() <= 5e-6 * expected.abs().max()


def test_classifier_equals_an_independent_computation() -> None:
    config, weights, _ = read_golden(FILES[0])
    weights = {key: value for key, value in weights.items() if 'extra_norms' not in key}
    shapes = dict(
        proj_weight=(1024, 64), proj_bias=(1024,), norm_weight=(1024,), norm_bias=(1024,),
        norm_running_mean=(1024,), head_weight=(7, 1024), head_bias=(7,),
    )  # fmt: skip
    weights |= {key.replace('_', '.', 1): torch.randn(shape) for key, shape in shapes.items()}
    weights['norm.running_var'] = torch.rand(1024) + 0.5
    weights['norm.num_batches_tracked'] = torch.tensor(1)
    model = build(config, num_classes=7).eval()
    report = load_weights(model, weights)
    assert report.fraction == 1
    assert not report.missing
    image = torch.randn(2, 3, 40, 70)
    expected = Oracle(config, weights).logits(image)
    assert expected.std() > 1
    with torch.no_grad():
        assert (model(image) - expected).abs().max() <= 5e-6 * expected.abs().max()


def test_rotary_turns_pairs_by_the_token_index() -> None:
    x = torch.randn(1, 6, 1, 4)
    out = apply_rotary(x)
    for t in range(6):
        for m, angle in enumerate((1.0, 1e-4)):
            a, b = x[0, t, 0, 2 * m].item(), x[0, t, 0, 2 * m + 1].item()
            cos, sin = math.cos(t * angle), math.sin(t * angle)
            expected = [a * cos - b * sin, b * cos + a * sin]
            assert out[0, t, 0, 2 * m : 2 * m + 2].tolist() == pytest.approx(expected, abs=1e-6)
    shifted = apply_rotary(torch.cat((x[:, :2], x), 1), num_prefix=2)
    assert torch.equal(shifted, torch.cat((x[:, :2], out), 1))


@pytest.mark.parametrize('arch', PARAMETERS)
def test_parameters(arch: str) -> None:
    with torch.device('meta'):
        model = RMT(arch=arch, num_classes=1000)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[arch]


def test_parameters_cover_every_variant_of_the_pyramid() -> None:
    assert set(PARAMETERS) == {name for name in VARIANTS if not name.startswith(('deit', 'swin'))}


def test_decay_mode_post_is_the_papers_formula() -> None:
    """A stage with one block, all else equal, against the product written out."""
    torch.manual_seed(1)
    model = RMT(
        arch=dict(embed_dims=[8], depths=[1], num_heads=[2], mlp_ratios=[2], decay_init=2,
                  decay_range=[4], decomposed=[False], layer_scale=[None], drop_path_rate=0),
        out_indices=(0,), decay_mode='post',
    ).double()  # fmt: skip
    layer = model.stages[0].blocks[0].attn
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    q, k, v = (t.unflatten(-1, (2, 4)) for t in layer.qkv(x).chunk(3, -1))
    weights = torch.einsum('bimd,bjmd->bmij', apply_rotary(q), apply_rotary(k)).div(2).softmax(-1)
    rows, cols = torch.arange(6) // 3, torch.arange(6) % 3
    dist = (rows[:, None] - rows).abs() + (cols[:, None] - cols).abs()
    for head in range(2):
        weights[:, head] *= (1 - 2.0 ** (-2 - 4 * head / 2)) ** dist
    expected = torch.einsum('bmij,bjmd->bimd', weights, v).flatten(-2)
    expected = layer.proj(expected + layer.lepe(layer.qkv(x)[..., 16:], (2, 3)))
    torch.testing.assert_close(layer(x, (2, 3)), expected, rtol=0, atol=1e-7)


def test_unknown_decay_mode_is_named() -> None:
    with pytest.raises(ValueError, match=r"decay_mode='pre'.*logit.*post"):
        RMT(decay_mode='pre')
