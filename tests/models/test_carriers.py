"""RMT's, EVT's and SDT's priors in a plain ViT and in Swin, where nothing else is theirs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import timm
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from mmspatial import build_backbone, list_backbones, load_weights
from mmspatial.models import EVT, RMT
from mmspatial.models.layers.attention import SpatialAttention
from mmspatial.models.layers.layout import Groups
from mmspatial.models.layers.priors import DecayPrior, GatedPrior
from mmspatial.models.trunks.backbone import Backbone

# 2 ** -60 is nothing beside 1, so the decay's logarithm is 0.
NO_DECAY = dict(decay_init=60)
PLAIN = dict(embed_dims=32, depth=3, num_heads=4, patch_size=8, img_size=32)
SWIN = dict(embed_dims=[16, 32, 64], depths=[2, 2, 2], num_heads=[2, 2, 4], patch_size=4)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def on_meta(name: str, arch: str) -> Backbone:
    with torch.device('meta'):
        return {'EVT': EVT, 'RMT': RMT}[name](arch=arch, num_classes=1000)


@pytest.mark.parametrize('name', ['EVT', 'RMT', 'SDT'])
def test_archs_are_listed(name: str) -> None:
    assert {'deit_tiny', 'deit_small', 'deit_base'} <= set(list_backbones()[name])
    assert ('swin_tiny' in list_backbones()[name]) == (name != 'SDT')


@pytest.mark.parametrize('name', ['EVT', 'RMT'])
@pytest.mark.parametrize('size', ['tiny', 'small', 'base'])
def test_plain_archs_have_deits_parameters(name: str, size: str) -> None:
    with torch.device('meta'):
        expected = timm.create_model(f'vit_{size}_patch16_224', num_classes=1000)
    model = on_meta(name, f'deit_{size}')
    assert count(model) == count(expected)
    assert len(model.stages) == 12


@pytest.mark.parametrize(
    ('name', 'size'),
    [('EVT', 'tiny'), ('EVT', 'small'), ('EVT', 'base'), ('RMT', 'tiny'), ('RMT', 'small')],
)
def test_swin_archs_have_swins_parameters_but_for_its_tables(name: str, size: str) -> None:
    with torch.device('meta'):
        swin = timm.create_model(f'swin_{size}_patch4_window7_224', num_classes=1000)
    tables = sum(p.numel() for key, p in swin.named_parameters() if 'bias_table' in key)
    assert tables > 0
    assert count(on_meta(name, f'swin_{size}')) == count(swin) - tables


@pytest.mark.parametrize('name', ['EVT', 'RMT', 'SDT'])
def test_without_decay_a_plain_arch_is_timms_vit(name: str) -> None:
    vit = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4, num_classes=5
    ).eval()
    nn.init.normal_(vit.cls_token)
    model = build_backbone(name, arch=dict(PLAIN, **NO_DECAY), num_classes=5).eval()
    if name == 'SDT':
        for prior in model.modules():
            if isinstance(prior, GatedPrior):
                nn.init.zeros_(prior.alpha)
    report = load_weights(model, vit.state_dict())
    assert report.scheme == 'timm ViT'
    assert all('.prior.' in key for key in report.missing)
    assert not report.unexpected
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x), vit(x), rtol=0, atol=1e-5)
        (y,) = model.feature_maps(x)
        tokens = vit.forward_intermediates(x, indices=[2], intermediates_only=True, norm=False)
        torch.testing.assert_close(y, tokens[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize('name', ['EVT', 'RMT'])
def test_without_decay_and_with_one_window_a_swin_arch_is_timms_swin(name: str) -> None:
    swin = SwinTransformer(
        img_size=32, patch_size=4, window_size=8, embed_dim=16, depths=(2, 2, 2),
        num_heads=(2, 2, 4), num_classes=5,
    ).eval()  # fmt: skip
    for key, parameter in swin.named_parameters():
        if 'bias_table' in key:
            nn.init.zeros_(parameter)
    field = dict(group_sizes=64) if name == 'EVT' else dict(decomposed=False)
    model = build_backbone(name, arch={**SWIN, **NO_DECAY, **field}, num_classes=5).eval()
    report = load_weights(model, swin.state_dict())
    assert report.fraction == 1
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x), swin(x), rtol=0, atol=1e-5)


def test_swin_archs_alternate_grouped_and_dilated() -> None:
    for stage in on_meta('EVT', 'swin_tiny').stages:
        layouts = [block.attn.layouts for block in stage.blocks]
        assert layouts == [(Groups(49, dilated=i % 2 == 1),) for i in range(len(layouts))]


def test_nothing_but_the_decay_is_added() -> None:
    for name, arch in (('EVT', 'swin_tiny'), ('RMT', 'swin_tiny'), ('RMT', 'deit_tiny')):
        for layer in on_meta(name, arch).modules():
            if isinstance(layer, SpatialAttention):
                assert layer.lepe is None
                assert not layer.rotary
    for option in ('rope', 'conv_ffn'):
        with pytest.raises(ValueError, match="for the pyramids of EVT, not for arch 'deit_tiny'"):
            EVT(arch='deit_tiny', **{option: True})


def test_class_token_has_no_bias_in_its_row_and_column() -> None:
    prior = DecayPrior(2, metric='euclidean', decay_init=2, decay_range=4)
    attn = SpatialAttention(8, 2, prior).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    bias = torch.zeros(2, 7, 7, dtype=torch.float64)
    for head in range(2):
        for i in range(6):
            for j in range(6):
                dist = math.hypot(i // 3 - j // 3, i % 3 - j % 3)
                bias[head, 1 + i, 1 + j] = math.log(1 - 2 ** (-2 - 2 * head)) * dist
    q, k, v = (t.unflatten(-1, (2, 4)) for t in attn.qkv(x).chunk(3, -1))
    weights = (torch.einsum('bimd,bjmd->bmij', q, k) / 2 + bias).softmax(-1)
    expected = attn.proj(torch.einsum('bmij,bjmd->bimd', weights, v).flatten(-2))
    torch.testing.assert_close(attn(x, (2, 3)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ('arch', 'stages', 'channels', 'strides'),
    [
        (dict(PLAIN), 3, (32,), (8,)),
        (dict(SWIN), 3, (16, 32, 64), (4, 8, 16)),
        (dict(embed_dims=[16, 32], depths=1, num_heads=2, decay_range=4, decomposed=True,
              mlp_ratios=2), 2, (16, 32), (4, 8)),
    ],
)  # fmt: skip
def test_fields_choose_the_trunk_and_default_outputs_fit_it(
    arch: dict[str, Any], stages: int, channels: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    if 'depths' in arch:
        arch = dict(arch, decay_range=4, decomposed=True, decay_init=2)
        arch.setdefault('mlp_ratios', 2)
    model = RMT(arch=arch)
    assert len(model.stages) == stages
    assert (model.out_channels, model.out_strides) == (channels, strides)
    assert [y.shape[1] for y in model(torch.randn(1, 3, 40, 72))] == list(channels)
