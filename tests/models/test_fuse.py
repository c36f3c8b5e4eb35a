"""`mmspatial.fuse_for_inference`: the same outputs from fewer steps."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import mmspatial
from mmspatial.models.layers.block import LayerScale
from mmspatial.models.layers.packed import PackedLinear, packed

TINY = {
    'RMT': dict(
        embed_dims=[16, 32], depths=[1, 2], num_heads=[2, 4], mlp_ratios=[2, 2],
        decay_init=[2, 2], decay_range=[4, 4], decomposed=[True, False], layer_scale=[0.5, 1e-2]),
    'EVT': dict(
        embed_dims=[16, 32], depths=[1, 2], num_heads=[2, 4], mlp_ratios=[2, 2],
        decay_init=[2, 2], decay_range=[4, 4], group_sizes=[9, None], layer_scale=[None, 0.3]),
    'SDT': dict(
        embed_dims=[16, 32], depths=[1, 2], num_heads=[2, 4], mlp_ratios=[2, 2],
        decay_init=[2, 2], decay_range=[4, 4], decomposed=[True, False], layer_scale=[0.5, 1e-2]),
    'AliasFreeViT': dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2, patch_size=8),
    'LocAtViT': dict(embed_dims=32, depth=2, num_heads=2, patch_size=8, img_size=48),
}  # fmt: skip


def randomised(model: nn.Module) -> nn.Module:
    """Give norms and scales values that a fold must not lose."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
        elif isinstance(module, LayerScale):
            nn.init.normal_(module.gamma)
    return model.eval()


@pytest.mark.parametrize('name', TINY)
def test_outputs_stay(name: str) -> None:
    model = randomised(mmspatial.build_backbone(name, arch=TINY[name]))
    x = torch.randn(2, 3, 45, 61)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    fused = mmspatial.fuse_for_inference(model)
    for got, want in zip(fused(x), model(x), strict=True):
        assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    assert not any(isinstance(m, nn.BatchNorm2d | LayerScale) for m in fused.modules())
    assert not any(type(m) is nn.Linear for m in fused.modules())
    assert not any(p.requires_grad for p in fused.parameters())
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), 'the original must stay as it was'
    again = mmspatial.fuse_for_inference(fused)
    torch.testing.assert_close(again(x), fused(x))


def test_other_norms_stay() -> None:
    norm = {'type': 'GN', 'num_groups': 2}
    model = mmspatial.build_backbone('RMT', arch=TINY['RMT'], norm_cfg=norm).eval()
    x = torch.randn(1, 3, 40, 40)
    fused = mmspatial.fuse_for_inference(model)
    torch.testing.assert_close(fused(x), model(x), atol=1e-4, rtol=1e-4)
    assert any(isinstance(m, nn.GroupNorm) for m in fused.modules())


def test_heads_of_the_hosts_are_folded_too() -> None:
    from mmcv.cnn import ConvModule

    model = nn.Sequential(
        ConvModule(3, 8, 3, norm_cfg={'type': 'BN'}),
        ConvModule(8, 8, 3, norm_cfg={'type': 'BN'}, order=('norm', 'conv', 'act')),
    )
    x = torch.randn(2, 3, 9, 9)
    fused = mmspatial.fuse_for_inference(randomised(model))
    torch.testing.assert_close(fused(x), model(x))
    assert sum(isinstance(m, nn.BatchNorm2d) for m in fused.modules()) == 1


@pytest.fixture
def layers() -> tuple[nn.Linear, PackedLinear]:
    torch.manual_seed(0)
    layer = nn.Linear(24, 40)
    return layer, packed(copy.deepcopy(layer))


@pytest.mark.parametrize('bias', [False, True])
@torch.no_grad()
def test_a_packed_layer_takes_any_tokens(bias: bool) -> None:
    layer = nn.Linear(24, 40, bias)
    x = torch.randn(3, 24, 10)
    for tokens in (x.mT, x.mT.contiguous(), x.mT[:, ::3], x.mT[:, :0], x[0, :, 0], x.mT.bfloat16()):
        layer.to(tokens.dtype)
        torch.testing.assert_close(packed(layer)(tokens), layer(tokens))


def test_a_packed_layer_notices_new_weights(layers: tuple[nn.Linear, PackedLinear]) -> None:
    layer, fused = layers
    x = torch.randn(5, 24)
    with torch.no_grad():
        fused(x)
        layer.weight.mul_(2)
        fused.weight.mul_(2)
        torch.testing.assert_close(fused(x), layer(x))
        fused.load_state_dict({'weight': torch.ones(40, 24), 'bias': torch.zeros(40)})
        torch.testing.assert_close(fused(x), x.sum(1, keepdim=True).expand(5, 40))
        fused.double()
        assert fused(x.double()).dtype == torch.float64


def test_a_packed_layer_is_a_plain_one_elsewhere(layers: tuple[nn.Linear, PackedLinear]) -> None:
    layer, fused = layers
    x = torch.randn(5, 24, requires_grad=True)
    gradient, want = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (fused, layer))
    torch.testing.assert_close(gradient, want)
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
        assert fused(x).dtype == torch.bfloat16
    graph = str(torch.export.export(fused, (x.detach(),)).graph)
    assert 'aten.linear' in graph
    assert 'mkldnn' not in graph


def test_packed_weights_stay_out_of_copies_and_files(
    layers: tuple[nn.Linear, PackedLinear],
) -> None:
    layer, fused = layers
    x, file = torch.randn(5, 24), io.BytesIO()
    with torch.no_grad():
        fused(x)
        torch.save(fused, file)
        file.seek(0)
        for again in (copy.deepcopy(fused), torch.load(file, weights_only=False)):
            torch.testing.assert_close(again(x), layer(x))
