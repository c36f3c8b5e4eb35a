from __future__ import annotations

import csv
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import run_tool
from torch import nn

from mmspatial import build_backbone
from mmspatial.apis.benchmarks import options
from mmspatial.apis.benchmarks.backbone_names import find_backbone
from mmspatial.apis.benchmarks.bench_backbones import COLUMNS, overview
from mmspatial.apis.benchmarks.growth import fit_growth
from mmspatial.apis.benchmarks.measure import Clock, Run, interleave
from mmspatial.apis.benchmarks.parts import Part
from mmspatial.apis.benchmarks.profiles import profile_operators
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


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / 'small.py'
    file.write_text(f'model = dict(backbone={dict(type="mmspatial.AliasFreeViT", arch=PLAIN)})')
    return file


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline='') as lines:
        return list(csv.DictReader(lines))


def test_run(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / 'results'
    run_tool('bench_backbones', config, 'timm:test_vit', '--sizes', '64', '32', '--batch', '2',
             '--dtype', 'bf16', 'fp32', '--published', '--fuse', '--quick',
             '--out', out)  # fmt: skip
    rows = read(out / 'backbones_cpu_bf16_fp32.csv')
    assert list(rows[0]) == list(COLUMNS)
    forms = {'forward': ('', 'fused', 'published'), 'train': ('', 'published')}
    assert [
        (row['pass'], row['size'], row['backbone'], row['form'], row['dtype']) for row in rows
    ] == [
        (kind, size, *contender, dtype)
        for kind in forms
        for size in ('32', '64')
        # Nothing of timm's is folded or published.
        for contender in (*(('small', form) for form in forms[kind]), ('timm:test_vit', ''))
        for dtype in ('bf16', 'fp32')
    ]
    assert [row['reason'] for row in rows] == [''] * len(rows)
    times = {tuple(row[name] for name in ('size', 'pass', 'backbone', 'form', 'dtype')): row
             for row in rows}  # fmt: skip
    for (*same, form, dtype), row in times.items():
        assert float(row['images_s']) == pytest.approx(2e3 / float(row['p50_ms']), rel=2e-3)
        assert float(row['peak_mb']) > 0
        for column, other in (('speedup_over_eager', ''), ('speedup_over_published', 'published')):
            if over := times.get((*same, other, dtype)):
                ratio = float(over['min_ms']) / float(row['min_ms'])
                assert float(row[column]) == pytest.approx(ratio, rel=3e-3), form
            else:
                assert row[column] == ''
    assert (out / 'backbones_cpu_bf16_fp32.png').read_bytes().startswith(b'\x89PNG')
    assert len(read(out / 'backbones_cpu_bf16_fp32_growth.csv')) == len(rows) / 2
    assert 'growth' in capsys.readouterr().out
    assert not (out / 'targets_backbones_cpu_bf16_fp32.json').exists()


def test_compiled_and_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, 'compile', functools.partial(torch.compile, backend='eager'))
    run_tool('bench_backbones', 'timm:test_vit', '--sizes', '32', '--passes', 'forward',
             '--compile', '--profile', '--quick', '--out', tmp_path, '--name', 'mine')  # fmt: skip
    rows = read(tmp_path / 'mine.csv')
    assert [(row['form'], row['reason']) for row in rows] == [('', ''), ('compiled', '')]
    operators = read(tmp_path / 'mine_profile.csv')
    eager = [row for row in operators if not row['form']]
    assert [row['operator'] for row in eager].index('others') == 8 == len(eager) - 1
    times = [float(row['ms']) for row in eager[:8]]
    assert times == sorted(times, reverse=True)
    assert sum(float(row['share']) for row in eager) == pytest.approx(1, abs=1e-3)
    assert 'aten::linear' in {row['operator'] for row in eager}
    compiled = {row['operator'] for row in operators if row['form'] == 'compiled'}
    assert any(name.startswith('Torch-Compiled Region') for name in compiled)


def test_profile_is_by_the_operators_on_top() -> None:
    x = torch.randn(2**18)

    def run() -> None:
        for _ in range(3):
            torch.nn.functional.linear(x.view(512, 512), x.view(512, 512))
        x.add(1)

    first, *rest = profile_operators(run, torch.device('cpu'), most=1)
    assert (first['operator'], first['calls']) == ('aten::linear', 3)
    assert first['allocated_mb'] == 3.0
    (others,) = rest
    # Six views and a sum.
    assert (others['operator'], others['calls'], others['allocated_mb']) == ('others', 7, 1.0)
    assert first['share'] + others['share'] == pytest.approx(1)


def test_slow_calls_have_fewer_rounds() -> None:
    class Steps(Clock):
        def time(self, run: Run, repeats: int = 1) -> float:
            assert repeats == 1
            return run()

    calls = []
    runs = {
        'slow': lambda: calls.append('s') or 50e3,
        'quick': lambda: calls.append('q') or 900.0,
    }
    times = interleave(runs, Steps(torch.device('cpu')), 7)
    # One call to warm up the slow one, and no round after 90 seconds.
    assert ''.join(calls) == 'sqq' + 'sq' + 'qs'
    assert times == {'slow': [50e3] * 2, 'quick': [900.0] * 2}


def test_target_run(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names, out = (str(config),), tmp_path / 'results'
    run = (
        Part(names, 'one', (256, 512), ('forward',), forms=('published',)),
        Part(names, 'other', (384,), ('train',), profile=True),
        Part(names, 'left-out', (256,)),
    )
    monkeypatch.setattr(options, 'TARGET_RUN', run)
    run_tool('bench_backbones', '--parts', 'other', 'one', '--quick', '--out', out)
    assert {file.name for file in out.iterdir()} == {
        'backbones_cpu.csv', 'backbones_cpu.png', 'backbones_cpu_growth.csv',
        'backbones_cpu_profile.csv', 'targets_backbones_cpu.json',
    }  # fmt: skip
    rows = read(out / 'backbones_cpu.csv')
    assert [(row['part'], row['pass'], row['size'], row['form']) for row in rows] == [
        ('one', 'forward', '32', ''), ('one', 'forward', '32', 'published'),
        ('one', 'forward', '64', ''), ('one', 'forward', '64', 'published'),
        ('other', 'train', '48', ''),
    ]  # fmt: skip
    profiled = read(out / 'backbones_cpu_profile.csv')
    assert {row['pass'] for row in profiled} == {'train'}
    assert 'ConvolutionBackward0' in {row['operator'] for row in profiled}
    reached = json.loads((out / 'targets_backbones_cpu.json').read_text())['targets']
    assert reached
    assert {target['measured'] for target in reached} == {None}
    assert 'not measured (must >= 1.25x, aim >= 1.5x)' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['rmt_s', '--parts', 'growth'], '--parts is for the run without names of backbones'),
        (['--sizes', '64'], 'name the backbones: the run without names has sizes'),
        (['--profile', '--parts', 'growth'], 'name the backbones'),
        (['--parts', 'shrinkage'], "invalid choice: 'shrinkage'"),
    ],
)
def test_options_that_do_not_go_together(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        options.parse_backbones_args(words, tmp_path)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_plot_of_the_target_run() -> None:
    rows = [
        {'part': part, 'pass': kind, 'dtype': dtype, 'batch': 1, 'backbone': backbone,
         'form': form, 'size': size}
        for part, kind, dtype, backbone, form, sizes in (
            ('forward', 'forward', 'fp32', 'a', '', (1, 2)),
            ('forward', 'forward', 'fp32', 'a', 'fused', (1, 2)),
            ('forward', 'forward', 'fp32', 'a', 'published', (1, 2)),
            ('forward', 'forward', 'fp32', 'b', '', (1, 2)),
            ('growth', 'forward', 'fp32', 'a', '', (1, 2, 3)),
            ('bf16', 'forward', 'bf16', 'a', '', (1,)),
            ('train', 'train', 'fp32', 'a', '', (1,)),
        )
        for size in sizes
    ]  # fmt: skip
    assert [(row['part'], row['form'], row['size']) for row in overview(rows)] == [
        ('forward', '', 1), ('forward', '', 2), ('forward', 'published', 1),
        ('forward', 'published', 2), ('growth', '', 3),
    ]  # fmt: skip


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
    ours, timms = read(tmp_path / 'mine.csv')
    assert ours['min_ms']
    assert not timms['min_ms']
    assert timms['reason']
    assert timms['reason'] in capsys.readouterr().out


def test_growth_is_fitted() -> None:
    same = {'part': '', 'form': '', 'pass': 'forward', 'dtype': 'fp32', 'batch': 1}
    rows = [
        {**same, 'backbone': 'a', 'size': n, 'min_ms': 3.0 * n**2, 'peak_mb': 0.1 * n**4}
        for n in (2, 4, 8)
    ]
    # At one size each: of another backbone, part, dtype and batch.
    for other in ({'backbone': 'b'}, {'part': 'x'}, {'dtype': 'bf16'}, {'batch': 2}):
        rows.append({**same, 'backbone': 'a', 'size': 2, 'min_ms': 99.0, **other})
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
