from __future__ import annotations

import copy
import inspect
import math
import pickle
import warnings
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from golden import randomise, read_golden, relative_error, silence, worst_error
from timm.layers import resample_abs_pos_embed
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from mmspatial import load_weights
from mmspatial.models import LocAtViT
from mmspatial.models.backbones.locatvit import VARIANTS
from mmspatial.models.heads.pooled import refine_patches
from mmspatial.models.layers.mixed_rotary import MixedRotary
from mmspatial.models.layers.priors.gaussian import (
    GaussianPrior,
    bounded_variance,
    gaussian_limits,
)

FILES = ('locatvit', 'locatvit_registers', 'locatvit_nopos')
SMALL = dict(img_size=64, patch_size=16, embed_dims=48, depth=3, num_heads=3, drop_path_rate=0.0)


def build(**options: Any) -> LocAtViT:
    arch = {**SMALL, **options.pop('arch', {})}
    return LocAtViT(arch=arch, **options).eval()


def build_timm(**options: Any) -> VisionTransformer:
    words = dict(img_size=64, patch_size=16, embed_dim=48, depth=3, num_heads=3, num_classes=10)
    words |= dict(dynamic_img_size=True, dynamic_img_pad=True)
    model = VisionTransformer(**(words | options)).eval()
    randomise(model)
    return model


@pytest.mark.smoke
@pytest.mark.parametrize('impl', ['auto', 'reference'])
@pytest.mark.parametrize('name', FILES)
def test_released_outputs(name: str, impl: str) -> None:
    config, weights, cases = read_golden(name)
    arch = dict(
        img_size=config['img_size'], patch_size=config['patch_size'],
        embed_dims=config['embed_dim'], depth=config['depth'], num_heads=config['num_heads'],
        num_registers=config.get('reg_tokens', 0),
        pos_embed='none' if config.get('no_pos_emb') else 'learn',
    )  # fmt: skip
    blocks = range(config['depth'])
    model = LocAtViT(arch=arch, out_indices=blocks, num_classes=config['num_classes'], impl=impl)
    report = load_weights(model, weights)
    assert report.scheme == 'timm ViT'
    assert report.fraction == 1
    assert not report.missing
    assert not report.unexpected
    error = worst_error(model.eval(), cases, 'block')
    print(f'{name}: worst relative error {error:.1e}')
    assert error < 2e-6
    assert worst_error(model.double(), cases, 'block') < 2e-6


def test_released_outputs_when_compiled() -> None:
    config, weights, cases = read_golden('locatvit')
    model = build(arch=dict(embed_dims=config['embed_dim']), out_indices=(0, 1, 2))
    load_weights(model, weights)
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    with torch.no_grad():
        for i, y in enumerate(compiled(cases['case2']['input'])):
            assert relative_error(y, cases['case2'][f'block{i}']) < 2e-6


@pytest.mark.parametrize(
    ('arch', 'parameters'), [('tiny', 5_717_416), ('small', 22_050_664), ('base', 86_567_656)]
)
def test_parameters_are_timms_and_2340(arch: str, parameters: int) -> None:
    with torch.device('meta'):
        model = LocAtViT(arch=arch, num_classes=1000)
        reference = timm.create_model(f'vit_{arch}_patch16_224')
    assert sum(p.numel() for p in reference.parameters()) == parameters
    assert sum(p.numel() for p in model.parameters()) == parameters + 2340


@pytest.mark.parametrize('size', [(64, 64), (50, 100), (16, 7)])
@pytest.mark.parametrize('registers', [0, 2])
def test_without_gaussians_it_is_timms_vit(size: tuple[int, int], registers: int) -> None:
    theirs = build_timm(reg_tokens=registers)
    ours = build(arch=dict(num_registers=registers), out_indices=(0, 2))
    report = load_weights(ours, theirs.state_dict())
    assert not report.unexpected
    assert len(report.missing) == 3 * 4
    assert all('.attn.prior.to_' in key for key in report.missing)
    silence(ours)
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        # timm's own grid of intermediates is wrong for padded images, so take the tokens.
        tokens = theirs._pos_embed(theirs.patch_embed(x))
        for i, block in enumerate(theirs.blocks):
            tokens = block(tokens)
            if i in (0, 2):
                y = ours(x)[i // 2].flatten(2).transpose(1, 2)
                assert relative_error(y, tokens[:, 1 + registers :]) < 1e-5


def test_gates_stay_fresh_when_timm_weights_come_in() -> None:
    ours = build()
    before = {key: value.clone() for key, value in ours.state_dict().items()}
    load_weights(ours, build_timm().state_dict())
    for key, value in ours.state_dict().items():
        assert torch.equal(value, before[key]) == ('.prior.' in key), key


def test_position_embedding_is_fitted_when_loading() -> None:
    source = build_timm()
    ours = build(arch=dict(img_size=(96, 160)))
    load_weights(ours, source.state_dict())
    expected = resample_abs_pos_embed(source.pos_embed, [6, 10], [4, 4])
    torch.testing.assert_close(ours.embed.pos_embed, expected)


def test_position_embedding_without_rows_for_prefix_tokens() -> None:
    source = build_timm(reg_tokens=3, no_embed_class=True, img_size=32)
    ours = build(arch=dict(num_registers=3), out_indices=(2,))
    assert not load_weights(ours, source.state_dict()).unexpected
    assert not ours.embed.pos_embed[:, :4].any()
    expected = resample_abs_pos_embed(source.pos_embed, [4, 4], [2, 2], num_prefix_tokens=0)
    torch.testing.assert_close(ours.embed.pos_embed[:, 4:], expected)


def test_position_embedding_of_a_distilled_deit_and_of_missing_registers() -> None:
    source = build_timm().state_dict()
    rows = torch.randn(1, 2 + 16, 48)
    report = load_weights(ours := build(), source | {'pos_embed': rows, 'dist_token': rows[:, :1]})
    assert report.skipped == ['dist_token', 'norm.weight', 'norm.bias', 'head.fc.weight',
                              'head.fc.bias']  # fmt: skip
    torch.testing.assert_close(ours.embed.pos_embed, rows[:, [0, *range(2, 18)]])

    ours = build(arch=dict(num_registers=2))
    fresh = ours.embed.pos_embed[:, 1:3].clone()
    load_weights(ours, source)
    torch.testing.assert_close(ours.embed.pos_embed[:, 1:3], fresh)
    torch.testing.assert_close(ours.embed.pos_embed[:, 3:], source['pos_embed'][:, 1:])


def test_without_gaussians_rotary_is_timms() -> None:
    theirs = Eva(
        img_size=64, patch_size=16, embed_dim=48, depth=3, num_heads=3, num_classes=10,
        attn_type='rope', init_values=0.5, global_pool='token', use_abs_pos_emb=False,
        use_rot_pos_emb=True, rope_type='mixed', rope_grid_indexing='xy', rope_temperature=10.0,
        dynamic_img_size=True,
    ).eval()  # fmt: skip
    randomise(theirs)
    ours = build(arch=dict(pos_embed='rotary', layer_scale=1e-5), out_indices=(0, 2))
    assert not load_weights(ours, theirs.state_dict()).unexpected
    silence(ours)
    x = torch.randn(2, 3, 96, 48)
    with torch.no_grad():
        expected = theirs.forward_intermediates(x, indices=[0, 2], intermediates_only=True)
        for y, z in zip(ours(x), expected, strict=True):
            assert relative_error(y, z) < 1e-6


def test_rotary_logits_depend_on_offsets_only() -> None:
    rotary = MixedRotary(2, 8).double()
    q, k = torch.randn(2, 1, 2, 1, 8, dtype=torch.float64).expand(-1, -1, -1, 13, -1)
    products = rotary(q, (3, 4), 1) @ rotary(k, (3, 4), 1).mT
    products = products[..., 1:, 1:].unflatten(-2, (3, 4)).unflatten(-1, (3, 4))
    torch.testing.assert_close(products[:, :, 0, 1, 1, 3], products[:, :, 1, 0, 2, 2])
    assert (products[:, :, 0, 1, 1, 3] - products[:, :, 0, 1, 2, 2]).abs().min() > 1e-6


@pytest.mark.parametrize(
    ('side', 'floor', 'eps'),
    [
        (1, 0.0, 0.1),
        (14, -84.5, 0.1),
        (26, -312.5, 0.1),
        (27, -338.0, 0.2),
        (51, -1250.0, 0.2),
        (52, -1300.5, 0.4),
        (115, -6498.0, 0.8),
        (116, -6550.0, 0.8),
    ],
)
def test_limits(side: int, floor: float, eps: float) -> None:
    assert gaussian_limits((3, side) if side > 3 else (side, side)) == (floor, eps)


def test_variance_is_one_at_zero_and_bounded() -> None:
    x = torch.tensor([0.0, -50.0, 50.0], dtype=torch.float64)
    expected = torch.tensor([1.0, 0.0, 196.0], dtype=torch.float64)
    torch.testing.assert_close(bounded_variance(x, (14, 3)), expected)
    expected = torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(bounded_variance(x, (1, 1)), expected)


def gaussian_of(prior: GaussianPrior, q: Tensor, grid: tuple[int, int], step: int) -> Tensor:
    """Compute the bias ``(n, n)`` of one query map ``(H, W, D)`` between every step-th token."""
    cells = [(r, c) for r in range(grid[0] // step) for c in range(grid[1] // step)]
    c_max = max(prior.grid) ** 2
    bias = torch.zeros(len(cells), len(cells), dtype=q.dtype)
    for i, (r, c) in enumerate(cells):
        raw = prior.to_var(q[r, c])
        var = c_max / (1 + (math.log(c_max - 1) - raw).exp()) * min(grid) / min(prior.grid)
        alpha = (1 + prior.to_alpha(q[r, c]).exp()).log()
        for j, (r2, c2) in enumerate(cells):
            offset = step * torch.tensor([r - r2, c - c2], dtype=q.dtype)
            power = (-0.5 * offset**2).clamp(min=-0.5 * (max(prior.grid) - 1) ** 2)
            bias[i, j] = alpha * (power / (var + 0.1)).sum().exp()
    return bias


@pytest.mark.parametrize('grid', [(4, 6), (6, 4), (5, 6)])
@pytest.mark.parametrize('training', [False, True])
def test_prior_equals_its_definition_pooled_or_not(grid: tuple[int, int], training: bool) -> None:
    prior = GaussianPrior(8, (4, 3), pooled=True).double().train(training)
    randomise(prior)
    q, k, v = torch.randn(3, 1, 1, 2 + grid[0] * grid[1], 8, dtype=torch.float64)
    queries = q[0, 0, 2:].unflatten(0, grid)
    if training and grid[0] % 2 == 0:
        cells = F.avg_pool2d(queries.permute(2, 0, 1), 2).permute(1, 2, 0)
        bias = gaussian_of(prior, cells, grid, 2).view(grid[0] // 2, grid[1] // 2, grid[0] // 2, -1)
        for axis in range(4):
            bias = bias.repeat_interleave(2, axis)
        bias = bias.reshape(grid[0] * grid[1], -1)
    else:
        bias = gaussian_of(prior, queries, grid, 1)
    expected = F.scaled_dot_product_attention(q, k, v, F.pad(bias, (2, 0, 2, 0)))
    torch.testing.assert_close(prior(q, k, v, grid, 2), expected)


@pytest.mark.parametrize(
    ('img_size', 'pooled', 'expected'),
    [(496, None, False), (512, None, True), ((256, 512), None, False), (64, True, True),
     (512, False, False)],
)  # fmt: skip
def test_pooled_is_on_by_default_from_32_rows(
    img_size: int | tuple[int, int], pooled: bool | None, expected: bool
) -> None:
    model = build(arch=dict(img_size=img_size), pooled=pooled)
    assert all(stage.blocks[0].attn.prior.pooled is expected for stage in model.stages)


def test_refinement_equals_its_definition() -> None:
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    heads = []
    for head in x.chunk(2, -1):
        heads.append((head @ head.mT * 3**-0.5).softmax(-1) @ head)
    torch.testing.assert_close(refine_patches(x, 2), torch.cat(heads, -1))


def test_image_is_padded_at_the_bottom_and_right() -> None:
    model = build()
    randomise(model)
    x = torch.randn(1, 3, 33, 50)
    padded = torch.zeros(1, 3, 48, 64)
    padded[..., :33, :50] = x
    torch.testing.assert_close(model(x), model(padded))


def test_final_norm_is_the_classifiers() -> None:
    _, weights, cases = read_golden('locatvit')
    x = cases['case0']['input']
    raw, normed = build(), build(final_norm=True, out_indices=(1, 2))
    for model in (raw, normed):
        load_weights(model, weights)
    assert not any(key.startswith('norm.') for key in raw.state_dict())
    for i, y in zip((1, 2), normed(x), strict=True):
        block = cases['case0'][f'block{i}'].permute(0, 2, 3, 1)
        expected = F.layer_norm(block, (48,), weights['norm.weight'], weights['norm.bias'], 1e-6)
        torch.testing.assert_close(y.permute(0, 2, 3, 1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('size', [(1, 1), (53, 77)])
@pytest.mark.parametrize(
    'arch',
    [{}, dict(num_registers=2, pos_embed='none'), dict(pos_embed='rotary', layer_scale=0.1)],
)
def test_every_parameter_gets_a_finite_gradient(
    arch: dict[str, Any], size: tuple[int, int]
) -> None:
    for options in (dict(out_indices=(0, 1)), dict(num_classes=5), dict(final_norm=True)):
        model = build(arch=arch, **options).train()
        out = model(torch.randn(2, 3, *size))
        sum(y.square().sum() for y in (out if isinstance(out, tuple) else (out,))).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_outputs_shapes_and_subsets() -> None:
    model = build(out_indices=(0, 1, 2))
    maps = model(x := torch.randn(1, 3, 53, 77))
    assert [y.shape for y in maps] == [(1, 48, 4, 5)] * 3
    assert model.out_channels == (48,) * 3
    assert model.out_strides == (16,) * 3
    subset = build(out_indices=(0, -2))
    subset.load_state_dict(model.state_dict(), strict=False)
    assert len(subset.stages) == 2
    torch.testing.assert_close(subset(x), maps[:2])


def test_checkpointing_gives_the_same_gradients() -> None:
    plain = build(pooled=True).train()
    cheap = build(pooled=True, with_cp=True).train()
    cheap.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 64, 64)
    for model in (plain, cheap):
        model(x)[0].square().sum().backward()
    for a, b in zip(plain.parameters(), cheap.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_freezing() -> None:
    model = build(frozen_stages=2, final_norm=True, num_classes=3).train()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {
        name
        for name, _ in model.named_parameters()
        if name.startswith(('stages.2.', 'norm.', 'head.'))
    }
    assert not model.embed.training
    assert model.stages[2].training
    everything = build(frozen_stages=3, final_norm=True)
    assert not any(p.requires_grad for p in everything.parameters())


def test_copies_formats_and_repeats_agree_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        model = build(arch=dict(num_registers=1))
        randomise(model)
        x = torch.randn(2, 3, 40, 70)
        (expected,) = model(x)
        keys = set(model.state_dict())
        for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(other(x)[0], expected, rtol=0, atol=0)
        last = model(x.contiguous(memory_format=torch.channels_last))[0]
        torch.testing.assert_close(last, expected)
        assert set(model.state_dict()) == keys


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_is_finite_and_close(dtype: torch.dtype) -> None:
    model = build(arch=dict(pos_embed='rotary'), num_classes=10)
    x = 50 * torch.randn(1, 3, 64, 80)
    expected = model(x)
    with torch.autocast('cpu', dtype):
        out = model(x)
    assert out.isfinite().all()
    assert relative_error(out.float(), expected) < 0.05


@pytest.mark.parametrize(
    ('arch', 'message'),
    [
        ('huge', "no arch 'huge'"),
        (dict(pos_embed='sine'), "pos_embed='sine': expected one of learn, none, rotary"),
        (dict(img_size=8), 'img_size=8 is smaller than patch_size=16'),
        (dict(window_size=7), "no field 'window_size'"),
        (dict(embed_dims=50, num_heads=4), '50 channels cannot be divided into 4 heads'),
        (dict(embed_dims=54, num_heads=3, pos_embed='rotary'), 'divisible by 4, got 18'),
    ],
)
def test_errors_say_what_does_not_fit(arch: str | dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocAtViT(arch=arch)


def test_arguments_are_few_and_variants_share_fields() -> None:
    assert len(inspect.signature(LocAtViT).parameters) <= 15
    assert len({tuple(row) for row in VARIANTS.values()}) == 1
