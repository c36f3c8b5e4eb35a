from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from golden import read_golden, relative_error
from torch import Tensor, nn

from mmspatial import load_weights
from mmspatial.models import RMT, SDT
from mmspatial.models.layers.attention import SpatialAttention
from mmspatial.models.layers.layout import Columns, Full, Groups, Layout, Rows
from mmspatial.models.layers.priors import GatedPrior

# RMT's, and per block a gate (C x M + M) and M factors.
PARAMETERS = {'tiny': 14_334_216, 'small': 26_967_240, 'base': 54_154_896}
SMALL: dict[str, Any] = dict(
    embed_dims=[16, 32, 48, 64], depths=[2, 1, 2, 1], num_heads=[2, 2, 4, 4], mlp_ratios=3,
    decay_range=[4, 4, 6, 6], decomposed=[True, True, False, False],
    layer_scale=[None, None, 0.5, 0.5],
)  # fmt: skip


def pair(arch: Any, **options: Any) -> tuple[SDT, RMT]:
    """Build an SDT with large random weights but for its fresh gates, and an RMT with the same."""
    sdt, rmt = SDT(arch=arch, **options).eval(), RMT(arch=arch, **options).eval()
    with torch.no_grad():
        for layer in sdt.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(std=layer.in_features**-0.5)
    state = {key: value for key, value in sdt.state_dict().items() if '.attn.prior.' not in key}
    rmt.load_state_dict(state)
    return sdt, rmt


@pytest.mark.parametrize('size', [(64, 96), (53, 77)], ids=str)
@pytest.mark.parametrize('decomposed', [SMALL['decomposed'], True, False], ids=str)
def test_fresh_sdt_equals_rmt(decomposed: Any, size: tuple[int, int]) -> None:
    sdt, rmt = pair(dict(SMALL, decomposed=decomposed))
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        for out, expected in zip(sdt.double()(x.double()), rmt.double()(x.double()), strict=True):
            assert (out - expected).abs().max() <= 5e-7 * expected.abs().max()
        for out, expected in zip(sdt.float()(x), rmt.float()(x), strict=True):
            assert (out - expected).abs().max() <= 5e-6 * expected.abs().max()


def test_fresh_variant_equals_rmt() -> None:
    """The tiny rows agree in everything; values as they begin, unlike above."""
    sdt, rmt = SDT(arch='tiny').eval(), RMT(arch='tiny').eval()
    rmt.load_state_dict({k: v for k, v in sdt.state_dict().items() if '.attn.prior.' not in k})
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for out, expected in zip(sdt(x), rmt(x), strict=True):
            assert (out - expected).abs().max() <= 5e-7 * expected.abs().max()


def test_fresh_plain_sdt_equals_plain_rmt() -> None:
    arch = dict(embed_dims=32, depth=3, num_heads=4, patch_size=16, img_size=64, decay_range=4)
    sdt, rmt = pair(arch, out_indices=(0, 2))
    x = torch.randn(2, 3, 64, 100)
    with torch.no_grad():
        for out, expected in zip(sdt(x), rmt(x), strict=True):
            assert (out - expected).abs().max() <= 2e-6 * expected.abs().max()


def test_released_rmt_weights_make_a_fresh_sdt_of_equal_outputs() -> None:
    """The only numbers of a release that an SDT can be held against."""
    config, weights, cases = read_golden('rmt_decomposed2_layerscale')
    model = SDT(
        arch=dict(
            embed_dims=config['embed_dims'], depths=config['depths'],
            num_heads=config['num_heads'], mlp_ratios=config['mlp_ratios'],
            decay_range=config['heads_ranges'], decomposed=config['chunkwise_recurrents'],
            layer_scale=[None, None, 1e-6, 1e-6],
        )
    ).eval()  # fmt: skip
    report = load_weights(model, weights)
    assert report.missing
    assert all('.attn.prior.' in key for key in report.missing)
    with torch.no_grad():
        for case in cases.values():
            for i, y in enumerate(model(case['input'])):
                assert relative_error(y, case[f'stage{i}']) <= 5e-6


def test_gates_begin_at_rmts_decay_after_the_backbone_has_initialised_its_layers() -> None:
    model = SDT(arch='tiny')
    for stage, span in zip(model.stages, (4, 4, 6, 6), strict=True):
        prior = stage.blocks[0].attn.prior
        heads = len(prior.alpha)
        (gates,) = prior.features(torch.randn(1, 5, prior.gate_weight.shape[1]) * 10)
        for h in range(heads):
            expected = math.log(1 - 2 ** (-2 - span * h / heads))
            assert gates[0, :, h, 0].tolist() == pytest.approx([expected] * 5, rel=5e-6)
        assert prior.alpha.tolist() == [1.0] * heads
        assert not prior.gate_weight.any()


@pytest.mark.parametrize('arch', PARAMETERS)
def test_parameters(arch: str) -> None:
    with torch.device('meta'):
        model = SDT(arch=arch, num_classes=1000)
    priors = [m for m in model.modules() if isinstance(m, GatedPrior)]
    gates = sum(m.gate_weight.numel() + 2 * len(m.alpha) for m in priors)
    assert len(priors) == sum(SDT.variants[arch]['depths'])
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[arch] + gates


def test_stages_one_and_two_are_decomposed() -> None:
    for name in PARAMETERS:
        with torch.device('meta'):
            model = SDT(arch=name)
        layouts = [stage.blocks[0].attn.layouts for stage in model.stages]
        for stage in (0, 1):
            assert [type(layout) for layout in layouts[stage]] == [Rows, Columns]
        for stage in (2, 3):
            assert [type(layout) for layout in layouts[stage]] == [Full]


def layer(*layouts: Layout) -> SpatialAttention:
    prior = GatedPrior(8, 2, decay_init=2, decay_range=4)
    with torch.no_grad():
        prior.gate_weight.normal_()
        prior.gate_bias.normal_()
        prior.alpha.copy_(torch.tensor([0.7, -1.5]))
    return SpatialAttention(8, 2, prior, layouts=layouts, lepe=True).double()


def written_out(attn: SpatialAttention, x: Tensor, grid: tuple[int, int], passes: str) -> Tensor:
    """Compute the layer as the definition says, with masks over the whole grid for the passes."""
    prior = attn.prior
    gate = torch.log(torch.sigmoid(x @ prior.gate_weight.T + prior.gate_bias))  # (B, N, M)
    q, k, v = (t.unflatten(-1, (2, 4)) for t in attn.qkv(x).chunk(3, -1))
    rows = torch.arange(grid[0] * grid[1]) // grid[1]
    cols = torch.arange(grid[0] * grid[1]) % grid[1]
    dy, dx = (rows[:, None] - rows).abs(), (cols[:, None] - cols).abs()
    allowed = {'full': dy >= 0, 'rows': dy == 0, 'columns': dx == 0}
    rate = prior.alpha / 2 * (gate[:, :, None] + gate[:, None])  # (B, N, N, M)
    logits = torch.einsum('bimd,bjmd->bijm', q, k) / 2 - (rate * (dy + dx)[..., None]).abs()
    local = attn.lepe(v.flatten(-2), grid)
    for step in passes.split(', '):
        weights = logits.masked_fill(~allowed[step][..., None], -math.inf).softmax(2)
        v = torch.einsum('bijm,bjmd->bimd', weights, v)
    return attn.proj(v.flatten(-2) + local)


@pytest.mark.parametrize(
    ('layouts', 'passes'), [((Full(),), 'full'), ((Rows(), Columns()), 'rows, columns')]
)
def test_layer_equals_the_definition(layouts: tuple[Layout, ...], passes: str) -> None:
    attn, x = layer(*layouts), torch.randn(2, 15, 8, dtype=torch.float64)
    expected = written_out(attn, x, (3, 5), passes)
    torch.testing.assert_close(attn(x, (3, 5)), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize('dilated', [False, True])
def test_gates_follow_their_tokens_into_padded_groups(dilated: bool) -> None:
    attn = layer(Groups(4, dilated))
    x = torch.randn(1, 15, 8, dtype=torch.float64)
    before = attn(x, (3, 5))
    with torch.no_grad():
        attn.lepe.weight.zero_()
    plain = attn(x, (3, 5))
    assert not torch.equal(before, plain)
    numbers = torch.arange(1, 16).view(1, -1, 1, 1)
    group = Groups(4, dilated).split(numbers, (3, 5))[0, 1, 0, :, 0] - 1
    x[:, group[0]] += 1
    changed = (attn(x, (3, 5)) - plain).abs().amax((0, 2)) > 0
    assert changed.nonzero().flatten().tolist() == group.tolist()


def test_class_tokens_gate_plays_no_role() -> None:
    prior = layer(Full()).prior
    q, k, v = torch.randn(3, 1, 2, 7, 4, dtype=torch.float64)
    (gates,) = prior.features(torch.randn(1, 7, 8, dtype=torch.float64))
    gates = gates.transpose(1, 2)
    out = prior(q, k, v, (2, 3), 1, None, gates)
    gates = torch.cat((gates[:, :, :1] - 5, gates[:, :, 1:]), 2)
    assert torch.equal(prior(q, k, v, (2, 3), 1, None, gates), out)


@pytest.mark.parametrize('arch', [SMALL, dict(embed_dims=32, depth=2, num_heads=4, img_size=64)])
def test_gradients_reach_gates_and_alpha(arch: dict[str, Any]) -> None:
    model = SDT(arch=arch)
    outputs = model(torch.randn(2, 3, 64, 96))
    sum((y * torch.randn_like(y)).mean() for y in outputs).backward()
    found = 0
    for prior in model.modules():
        if isinstance(prior, GatedPrior):
            found += 1
            for parameter in prior.parameters():
                assert parameter.grad.isfinite().all()
                assert (parameter.grad != 0).any()
    assert found == sum(arch.get('depths', [2]))


def test_gates_are_float32_under_autocast() -> None:
    prior = GatedPrior(8, 2, decay_init=2, decay_range=6)
    with torch.no_grad():
        prior.gate_weight.normal_()
    x = torch.randn(1, 5, 8)
    with torch.autocast('cpu', torch.bfloat16):
        (gates,) = prior.features(x)
    assert gates.dtype == torch.float32
    assert torch.equal(gates, prior.features(x)[0])
