from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from golden import randomise, read_golden, relative_error, silence, worst_error
from timm.models.swin_transformer import SwinTransformer

from mmspatial import load_weights
from mmspatial.models import LocAtSwin
from mmspatial.models.layers.embed import PatchMerging
from mmspatial.models.layers.window import (
    WindowAttention,
    merge_windows,
    relative_index,
    shift_mask,
    split_windows,
)

CPU = torch.device('cpu')
SMALL = dict(
    embed_dims=16, depths=(1, 2, 2, 1), num_heads=(2, 2, 4, 4), window_size=7, img_size=112,
    drop_path_rate=0.0,
)  # fmt: skip


def build(**options: Any) -> LocAtSwin:
    arch = {**SMALL, **options.pop('arch', {})}
    return LocAtSwin(arch=arch, **options).eval()


@pytest.mark.smoke
@pytest.mark.parametrize('impl', ['auto', 'reference'])
def test_released_outputs(impl: str) -> None:
    config, weights, cases = read_golden('locatswin')
    arch = dict(
        embed_dims=config['embed_dim'], depths=config['depths'], num_heads=config['num_heads'],
        window_size=config['window_size'], img_size=config['img_size'],
        patch_size=config['patch_size'],
    )  # fmt: skip
    model = LocAtSwin(arch=arch, num_classes=config['num_classes'], impl=impl)
    report = load_weights(model, weights)
    assert report.scheme == 'timm Swin'
    assert report.fraction == 1
    assert not report.missing
    assert not report.unexpected
    error = worst_error(model.eval(), cases, 'stage')
    print(f'locatswin: worst relative error {error:.1e}')
    assert error < 2e-6
    assert worst_error(model.double(), cases, 'stage') < 2e-6


@pytest.mark.parametrize('arch', ['tiny', 'base'])
def test_parameters_are_timms_and_the_gates(arch: str) -> None:
    with torch.device('meta'):
        model = LocAtSwin(arch=arch, num_classes=1000)
    reference = timm.create_model(f'swin_{arch}_patch4_window7_224')
    gates = sum(3 * (32 + 1) for stage in model.stages for _ in stage.blocks)
    expected = sum(p.numel() for p in reference.parameters()) + gates
    assert sum(p.numel() for p in model.parameters()) == expected


# timm halves the construction grid upwards, LocAt's release downwards: equal for these sizes.
# Odd grids, windows that do not divide them, a stage of one token, and windows wider than high.
@pytest.mark.parametrize(
    ('img_size', 'size'),
    [(128, (128, 128)), (128, (90, 131)), (128, (5, 3)), ((64, 224), (75, 230))],
)
def test_without_gaussians_it_is_timms_swin(
    img_size: int | tuple[int, int], size: tuple[int, int]
) -> None:
    theirs = SwinTransformer(
        img_size=img_size, window_size=7, embed_dim=16, depths=(1, 2, 2, 1),
        num_heads=(2, 2, 4, 4), num_classes=10, strict_img_size=False,
    ).eval()  # fmt: skip
    randomise(theirs)
    ours = build(arch=dict(img_size=img_size))
    report = load_weights(ours, theirs.state_dict())
    assert not report.unexpected
    assert all('.attn.prior.to_' in key for key in report.missing)
    silence(ours)
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        y = theirs.patch_embed(F.pad(x, (0, -size[1] % 4, 0, -size[0] % 4)))
        for ours_y, layer in zip(ours(x), theirs.layers, strict=True):
            y = layer(y)
            assert relative_error(ours_y.permute(0, 2, 3, 1), y) < 1e-5


def test_windows_follow_the_construction_size() -> None:
    model = build(arch=dict(img_size=(112, 224), depths=(2, 2, 2, 2)))
    found = [
        [(block.attn.window, block.attn.shift) for block in stage.blocks] for stage in model.stages
    ]
    shifted = [((7, 7), (0, 0)), ((7, 7), (3, 3))]
    assert found[:2] == [shifted, shifted]
    assert found[2] == [((7, 7), (0, 0)), ((7, 7), (0, 3))]
    assert found[3] == [((3, 7), (0, 0))] * 2
    assert model.stages[3].blocks[0].attn.prior.grid == (3, 7)


def test_windows_split_and_merge() -> None:
    x = torch.arange(24.0).view(1, 4, 6, 1)
    windows = split_windows(x, (2, 3))
    assert windows[0, :, :, 0].tolist() == [
        [0, 1, 2, 6, 7, 8],
        [3, 4, 5, 9, 10, 11],
        [12, 13, 14, 18, 19, 20],
        [15, 16, 17, 21, 22, 23],
    ]
    assert torch.equal(merge_windows(windows, (2, 3), (4, 6)), x)


def test_mask_separates_what_only_the_roll_joined() -> None:
    mask = shift_mask((4, 6), (2, 3), (1, 0), CPU)[:, 0]
    assert not mask[:2].any()
    # In the last row of windows, the second row of tokens came from the top of the map.
    for window in mask[2:]:
        expected = torch.zeros(6, 6)
        expected[:3, 3:] = expected[3:, :3] = -100
        assert torch.equal(window, expected)


def test_relative_index_counts_offsets() -> None:
    index = relative_index(2, 3, CPU)
    cells = [(r, c) for r in range(2) for c in range(3)]
    offsets = [(dy, dx) for dy in range(-1, 2) for dx in range(-2, 3)]
    for i, (r, c) in enumerate(cells):
        for j, (r2, c2) in enumerate(cells):
            assert offsets[index[i, j]] == (r - r2, c - c2)


def test_merging_joins_cells_down_the_columns() -> None:
    merging = PatchMerging(1, 2)
    x = torch.arange(1.0, 7.0).view(1, 6, 1)
    taken = []
    merging.norm.register_forward_pre_hook(lambda _, args: taken.append(args[0]))
    _, grid = merging(x, (2, 3))
    assert grid == (1, 2)
    assert taken[0].tolist() == [[[1, 4, 2, 5], [3, 6, 0, 0]]]


def test_table_is_resized_when_loading() -> None:
    source, target = build(arch=dict(window_size=5)), build()
    randomise(source)
    load_weights(target, source.state_dict())
    key = 'stages.1.blocks.1.attn.bias_table'
    table = source.state_dict()[key].T.unflatten(1, (9, 9))[None]
    expected = F.interpolate(table, (13, 13), mode='bicubic').flatten(2)[0].T
    torch.testing.assert_close(target.state_dict()[key], expected)


@pytest.mark.parametrize('size', [(1, 1), (53, 77)])
def test_every_parameter_gets_a_finite_gradient(size: tuple[int, int]) -> None:
    for options in (dict(out_indices=(0, 2)), dict(num_classes=5), {}):
        model = build(**options).train()
        out = model(torch.randn(2, 3, *size))
        sum(y.square().sum() for y in (out if isinstance(out, tuple) else (out,))).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_outputs_shapes_and_subsets() -> None:
    model = build()
    maps = model(x := torch.randn(1, 3, 53, 77))
    assert [y.shape[1:] for y in maps] == [(16, 14, 20), (32, 7, 10), (64, 4, 5), (128, 2, 3)]
    assert model.out_channels == (16, 32, 64, 128)
    assert model.out_strides == (4, 8, 16, 32)
    subset = build(out_indices=(1,))
    subset.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(subset(x)[0], maps[1])


def test_checkpointing_gives_the_same_gradients() -> None:
    plain, cheap = build().train(), build(with_cp=True).train()
    cheap.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 64, 64)
    for model in (plain, cheap):
        sum(y.square().sum() for y in model(x)).backward()
    for a, b in zip(plain.parameters(), cheap.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_freezing() -> None:
    model = build(frozen_stages=2).train()
    for name, parameter in model.named_parameters():
        later = ('stages.2.', 'stages.3.', 'downsamples.1.', 'downsamples.2.')
        assert parameter.requires_grad == name.startswith(later), name
    assert not model.embed.training
    assert not model.stages[1].training
    assert model.stages[2].training


def test_copies_formats_and_repeats_agree_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        model = build()
        randomise(model)
        x = torch.randn(2, 3, 40, 70)
        expected = model(x)
        keys = set(model.state_dict())
        for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(other(x), expected, rtol=0, atol=0)
        last = model(x.contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(last, expected)
        assert set(model.state_dict()) == keys


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_is_finite_and_close(dtype: torch.dtype) -> None:
    model = build(num_classes=10)
    x = 50 * torch.randn(1, 3, 64, 80)
    expected = model(x)
    with torch.autocast('cpu', dtype):
        out = model(x)
    assert out.isfinite().all()
    assert relative_error(out.float(), expected) < 0.05


def test_compiles_whole() -> None:
    model = build(out_indices=(1, 3))
    x = torch.randn(1, 3, 53, 77)
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_heads_must_divide_channels() -> None:
    with pytest.raises(ValueError, match='16 channels cannot be divided into 3 heads'):
        WindowAttention(16, 3, torch.nn.Identity(), window=(7, 7))
