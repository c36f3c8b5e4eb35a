from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import run_tool
from torch import nn

from mmspatial import build_backbone
from mmspatial.apis.benchmarks.backbone_names import find_backbone
from mmspatial.apis.benchmarks.bench_backbones import COLUMNS, fit_growth
from mmspatial.apis.benchmarks.published import published_form
from mmspatial.apis.errors import UserError

RMT = dict(
    embed_dims=(16, 16, 32, 32), depths=(1, 2, 1, 1), num_heads=(1, 2, 2, 2),
    decomposed=(True, True, False, False), layer_scale=(None, None, 0.5, 0.5),
)  # fmt: skip
PLAIN = dict(embed_dims=32, depth=2, num_heads=2, img_size=64)


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize(
    ('name', 'arch', 'size'),
    [
        ('RMT', RMT, (53, 77)),
        ('LocAtViT', PLAIN, (64, 64)),
        ('LocAtViT', dict(PLAIN, num_registers=2), (53, 90)),
        ('AliasFreeViT', PLAIN, (64, 48)),
        ('AliasFreeViT', PLAIN, (50, 90)),
    ],
)
def test_published_formulations_equal_ours(
    name: str, arch: dict[str, Any], size: tuple[int, int], training: bool
) -> None:
    torch.manual_seed(0)
    model = build_backbone(name, arch=arch, drop_path_rate=0.0).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    published = published_form(model, arch).double().train(training)
    model.train(training)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    for mine, theirs in zip(model(x), published(x), strict=True):
        # Decay rates are float32 numbers in both, but not computed by the same steps.
        assert (mine - theirs).abs().max() <= 1e-6 * mine.abs().max()


@pytest.mark.parametrize(
    ('name', 'arch'),
    [('EVT', 'tiny'), ('RMT', 'deit_tiny'), ('LocAtViT', dict(PLAIN, pos_embed='none'))],
)
def test_nothing_published(name: str, arch: str | dict[str, Any]) -> None:
    with torch.device('meta'):
        model = build_backbone(name, arch=arch)
    assert published_form(model, arch) is None


def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, out = tmp_path / 'small.py', tmp_path / 'results'
    backbone = dict(type='mmspatial.AliasFreeViT', arch=PLAIN)
    config.write_text(f'model = dict(backbone={backbone})')
    run_tool('bench_backbones', config, 'timm:test_vit', '--sizes', '64', '32', '--batch', '2',
             '--published', '--quick', '--dtype', 'bf16', '--out', out)  # fmt: skip
    with (out / 'backbones_cpu_bf16.csv').open(newline='') as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == list(COLUMNS)
    forms = [('small', ''), ('small', 'published'), ('timm:test_vit', '')]
    assert [(row['pass'], row['size'], row['backbone'], row['form']) for row in rows] == [
        (kind, size, *form)
        for kind in ('forward', 'train')
        for size in ('32', '64')
        for form in forms
    ]
    assert [row['reason'] for row in rows] == [''] * len(rows)
    for row in rows:
        assert float(row['images_s']) == pytest.approx(2e3 / float(row['p50_ms']), rel=2e-3)
        assert bool(row['speedup_over_published']) == (row['backbone'] == 'small')
        assert float(row['peak_mb']) > 0
    assert (out / 'backbones_cpu_bf16.png').read_bytes().startswith(b'\x89PNG')
    assert len((out / 'backbones_cpu_bf16_growth.csv').read_text().splitlines()) == 7
    assert 'growth' in capsys.readouterr().out


def test_backbone_of_an_mmseg_config(tmp_path: Path) -> None:
    config = tmp_path / 'resnet.py'
    config.write_text(
        "default_scope = 'mmseg'\n"
        "norm = dict(type='SyncBN', requires_grad=True)\n"
        "model = dict(backbone=dict(type='ResNetV1c', depth=18, norm_cfg=norm))\n"
    )
    named = find_backbone(str(config))
    model = named.build(32)
    assert (named.name, named.arch, type(model).__name__) == ('resnet', None, 'ResNetV1c')
    # SyncBN would refuse to train on a CPU.
    model.train()
    assert len(model(torch.randn(2, 3, 32, 32))) == 4


def test_a_backbone_that_cannot_run_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_tool('bench_backbones', 'evt_xs', 'timm:test_vit', '--sizes', '47', '--passes', 'forward',
             '--quick', '--out', tmp_path, '--name', 'mine')  # fmt: skip
    with (tmp_path / 'mine.csv').open(newline='') as lines:
        ours, timms = csv.DictReader(lines)
    assert ours['min_ms']
    assert not timms['min_ms']
    assert timms['reason']
    assert timms['reason'] in capsys.readouterr().out


def test_growth_is_fitted() -> None:
    rows = [
        {'backbone': 'a', 'form': '', 'pass': 'forward', 'size': n, 'min_ms': 3.0 * n**2,
         'peak_mb': 0.1 * n**4}
        for n in (2, 4, 8)
    ]  # fmt: skip
    rows.append({'backbone': 'b', 'form': '', 'pass': 'forward', 'size': 2, 'min_ms': 1.0})
    (fitted,) = fit_growth(rows)
    assert fitted['backbone'] == 'a'
    assert fitted['time_exponent'] == pytest.approx(1)
    assert fitted['memory_exponent'] == pytest.approx(2)


@pytest.mark.parametrize(
    ('name', 'said'),
    [
        ('rmt_q', "no backbone 'rmt_q', did you mean"),
        ('RMT:smal', "has no arch 'smal', did you mean 'small'"),
        ('XYZ:tiny', "no backbone 'XYZ'"),
        ('configs/upernet_evt_x_ade20k.py', "no config .*did you mean 'upernet_evt_"),
        ('timm:swin_smal', "timm has no model 'swin_smal'"),
    ],
)
def test_unknown_names(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        find_backbone(name)


def test_config_without_backbone(tmp_path: Path) -> None:
    config = tmp_path / 'empty.py'
    config.write_text('lr = 1\n')
    with pytest.raises(UserError, match=r'no model\.backbone'):
        find_backbone(str(config))
