from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mmdet.registry import MODELS as MMDET
from mmengine.registry import DefaultScope
from mmseg.registry import MODELS as MMSEG

from mmspatial.models import SimpleFeaturePyramid


def build(**options: Any) -> SimpleFeaturePyramid:
    return SimpleFeaturePyramid(**{'in_channels': [16] * 4, 'out_channels': 12, **options})


@pytest.mark.parametrize('grid', [(1, 1), (3, 5), (4, 6)])
def test_outputs_have_strides_4_to_64(grid: tuple[int, int]) -> None:
    neck = build(num_outs=5)
    outputs = neck(torch.randn(4, 2, 16, *grid))
    height, width = grid
    assert [y.shape for y in outputs] == [
        (2, 12, 4 * height, 4 * width),
        (2, 12, 2 * height, 2 * width),
        (2, 12, height, width),
        (2, 12, -(-height // 2), -(-width // 2)),
        (2, 12, -(-height // 4), -(-width // 4)),
    ]
    assert torch.equal(outputs[4], outputs[3][..., ::2, ::2])


def test_each_output_is_of_its_own_map_alone() -> None:
    neck = build(in_channels=[8, 16, 16, 24])
    inputs = [torch.randn(1, c, 4, 4, requires_grad=True) for c in (8, 16, 16, 24)]
    for i, y in enumerate(neck(inputs)):
        weights = torch.linspace(-1, 1, y.numel()).view(y.shape)
        grads = torch.autograd.grad((y * weights).sum(), inputs, allow_unused=True)
        assert [grad is not None for grad in grads] == [j == i for j in range(4)]
        assert grads[i].abs().max() > 0


def test_the_unscaled_level_is_two_normed_convolutions() -> None:
    neck, x = build(), torch.randn(1, 16, 4, 5)
    narrow, norm1, wide, norm2 = neck.levels[2]
    for norm in (norm1, norm2):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)

    def normed(y: torch.Tensor, norm: torch.nn.LayerNorm) -> torch.Tensor:
        variance, mean = torch.var_mean(y, 1, unbiased=False, keepdim=True)
        y = (y - mean) / (variance + 1e-6).sqrt()
        return y * norm.weight[:, None, None] + norm.bias[:, None, None]

    hidden = normed(F.conv2d(x, narrow.weight), norm1)
    expected = normed(F.conv2d(hidden, wide.weight, padding=1), norm2)
    torch.testing.assert_close(neck([x] * 4)[2], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('level', [0, 1, 2, 3])
def test_places_stay_where_they_are(level: int) -> None:
    """Only the positions that a changed one covers, and their neighbours, change."""
    neck, x = build(), torch.randn(1, 16, 8, 8)
    changed = x.clone()
    changed[..., 4, 2] += 10
    rows, cols = torch.nonzero(
        (neck([x] * 4)[level] - neck([changed] * 4)[level]).abs().amax((0, 1)) > 1e-6
    ).T
    scale = (4, 2, 1, 0.5)[level]
    size = max(int(scale), 1)
    top, left = int(4 * scale), int(2 * scale)
    assert (rows.min(), rows.max()) == (top - 1, top + size)
    assert (cols.min(), cols.max()) == (left - 1, left + size)


def test_every_parameter_trains() -> None:
    neck = build(scales=(2, 1, 0.5, 0.25), num_outs=5)
    outputs = neck(torch.randn(4, 1, 16, 4, 4))
    assert [y.shape[-1] for y in outputs] == [8, 4, 2, 1, 1]
    sum((y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() for y in outputs).backward()
    for name, parameter in neck.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_both_hosts_find_it() -> None:
    for scope, registry in (('mmseg', MMSEG), ('mmdet', MMDET)):
        with DefaultScope.overwrite_default_scope(scope):
            assert registry.get('mmspatial.SimpleFeaturePyramid') is SimpleFeaturePyramid


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(in_channels=[16]), r'4 scales need as many in_channels .* got in_channels=\[16\]'),
        (dict(num_outs=3), 'at least as many num_outs, .* num_outs=3'),
        (dict(scales=(3, 2, 1, 0.5)), 'scale 3 is no power of two'),
        (dict(scales=(0, 2, 1, 0.5)), 'scale 0 is no power of two'),
    ],
)
def test_settings_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_maps_of_a_pyramid_are_refused() -> None:
    maps = [torch.randn(1, 16, 16 >> i, 16 >> i) for i in range(4)]
    with pytest.raises(ValueError, match=r'have one size; got \(16, 16\), \(8, 8\).*without this'):
        build()(maps)
