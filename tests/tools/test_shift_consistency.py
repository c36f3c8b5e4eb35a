"""`tools/shift_consistency.py`: against segmentors whose answers are known, and on scenes."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS, init_default_scope
from tiny import TOOLS, run_tool, write_config
from torch import Tensor, nn

from mmspatial import build_backbone
from mmspatial.apis.configs import read_config
from mmspatial.apis.images import read_image
from mmspatial.apis.shifts import Protocol, Segmentor, Tally, Views, tally

FINE = 0.999999


def _rows(
    segmentor: Segmentor, image: Tensor, protocol: Protocol, truth: Tensor | None = None
) -> list[dict[str, float]]:
    truth = torch.zeros(image.shape[2:], dtype=torch.long) if truth is None else truth
    tallies = [Tally(size, 4) for size, _ in protocol.shifts()]
    tally(segmentor, image, truth, protocol, tallies)
    return [counts.row() for counts in tallies]


def _backbone(name: str, **options: object) -> Segmentor:
    """Make a segmentor of a backbone with a linear layer on its last map."""
    backbone = build_backbone(name, **options).double().eval()
    head = nn.Conv2d(backbone.out_channels[-1], 4, 1).double()
    # Otherwise one class would take all pixels of an untrained model.
    return lambda x: F.instance_norm(head(backbone(x)[-1]))


def _alias_free(**options: object) -> Segmentor:
    arch = dict(embed_dims=16, depth=1, num_heads=2, patch_size=2)
    return _backbone('AliasFreeViT', arch=arch, **options)


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('kind', ['cyclic', 'crop'])
def test_labels_are_those_of_interpolated_logits(kind: str, align_corners: bool) -> None:
    image, logits = torch.zeros(1, 3, 24, 40), torch.randn(1, 7, 5, 6)
    views = Views(image, Protocol(kind, 2, divisor=4), align_corners)
    expected = F.interpolate(
        logits, views.window, mode='bilinear', align_corners=align_corners
    ).argmax(1)[0]
    # Where an edge's clamping does not show.
    inner = slice(8, -8) if kind == 'cyclic' else slice(2, -2)
    for shift in ((0, 0), (2, -1)):
        labels = views.labels(logits, shift)
        if kind == 'cyclic':
            labels = labels.roll(shift, (0, 1))[inner, inner]
            assert torch.equal(labels, expected[inner, inner])
        else:
            y, x = (slice(2 + k, side - 2 + k) for k, side in zip(shift, (20, 36), strict=True))
            assert torch.equal(labels, expected[y, x])


@pytest.mark.parametrize('kind', ['cyclic', 'fractional'])
def test_alias_free_model_keeps_its_labels(kind: str) -> None:
    image = torch.rand(1, 3, 32, 24, dtype=torch.float64)
    # Half a patch is a step of the map upsampled by 2, on which GELU acts: exact. A quarter is not.
    least = FINE if kind == 'cyclic' else 0.95
    rows = _rows(_alias_free(), image, Protocol(kind, 2, ideal=True))
    assert min(row['worst_consistency'] for row in rows) > least
    plain = _rows(_alias_free(alias_free=False), image, Protocol(kind, 2, ideal=True))
    assert plain[1]['consistency'] < 0.8


def test_whole_patches_need_no_ideal_interpolation() -> None:
    image = torch.rand(1, 3, 32, 24, dtype=torch.float64)
    rows = _rows(_alias_free(), image, Protocol('cyclic', 2))
    assert rows[2]['consistency'] > FINE
    assert rows[1]['consistency'] < 1
    assert rows[2]['worst_consistency'] < 1
    arch = dict(embed_dims=8, depths=1, num_heads=2)
    rows = _rows(_backbone('EVT', arch=arch, out_indices=(0,)), image, Protocol('cyclic', 4))
    assert rows[4]['consistency'] < 0.99


@pytest.mark.parametrize('kind', ['cyclic', 'fractional', 'crop', 'bilinear'])
def test_linear_model_of_a_smooth_image_keeps_its_labels(kind: str) -> None:
    y, x = torch.meshgrid(*[torch.arange(32) * (torch.pi / 16)] * 2, indexing='ij')
    image = torch.stack([torch.full((32, 32), 0.3), x.sin(), y.cos()])[None]
    weight = torch.randn(4, 3, 1, 1)
    protocol = Protocol(kind, 2, 4, ideal=True, divisor=4)
    rows = _rows(lambda z: F.conv2d(z, weight), image, protocol)
    assert len(rows) == (9 if kind in ('fractional', 'bilinear') else 3)
    # Two interpolations blur a little.
    assert min(row['worst_consistency'] for row in rows) > (0.97 if kind == 'bilinear' else FINE)


@pytest.mark.parametrize('every', [False, True])
def test_worst_case_counts_each_pixel_that_is_ever_wrong(every: bool) -> None:
    """A model that takes the first column for class 1, whatever is in it."""

    def segmentor(x: Tensor) -> Tensor:
        first = torch.zeros(len(x), 1, *x.shape[2:])
        first[..., 0] = 1
        return torch.cat((0.5 - first, first, -1 + 0 * first), 1)

    wide = 20
    for row in _rows(segmentor, torch.zeros(1, 3, 8, wide), Protocol('cyclic', 2, every=every)):
        size = row['shift']
        assert row['accuracy'] == pytest.approx(1 - 1 / wide)
        assert row['mIoU'] == pytest.approx((1 - 1 / wide) / 2)
        # The share of shifts that are not straight up or down.
        moving = {0: 0, 1: 6 / 8, 2: 14 / 16 if every else 6 / 8}[size]
        assert row['consistency'] == pytest.approx(1 - moving * 2 / wide)
        columns = 2 * size + 1
        assert row['worst_accuracy'] == pytest.approx(1 - columns / wide)
        assert row['worst_mIoU'] == pytest.approx((1 - columns / wide) / 2)
        assert row['worst_consistency'] == pytest.approx(1 - (columns if size else 0) / wide)


def test_pixels_without_a_class_do_not_count() -> None:
    truth = torch.full((8, 8), 255)
    truth[0, :4] = torch.tensor([0, 1, 2, 3])
    (row, _) = _rows(lambda x: torch.eye(4)[None, :, :1, None].expand(len(x), 4, 8, 8) * 1.0,
                     torch.zeros(1, 3, 8, 8), Protocol('cyclic', 1), truth)  # fmt: skip
    assert row['accuracy'] == 0.25
    assert row['mIoU'] == pytest.approx((1 / 4 + 0 + 0 + 0) / 4)


@pytest.fixture(scope='module')
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Make a tiny config, and a checkpoint for it."""
    folder = tmp_path_factory.mktemp('shifts')
    config = write_config(folder, 'seg')
    cfg = read_config(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    torch.save(MODELS.build(cfg.model).state_dict(), folder / 'x.pth')
    return config, folder / 'x.pth'


def test_table_and_plot(
    model: tuple[str, Path], ade20k: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ('--max-shift', 1, '--limit', 1, '--divisor', 16, '--out-dir', tmp_path)
    run_tool('shift_consistency', *model, '--data-root', ade20k, *options)
    with (tmp_path / 'shifts.csv').open() as file:
        rows = list(csv.DictReader(file))
    kinds = [(row['kind'], float(row['shift'])) for row in rows]
    assert kinds == [
        ('cyclic', 0), ('cyclic', 1), ('crop', 0), ('crop', 1),
        ('fractional', 0), ('fractional', 0.5), ('fractional', 1),
        ('bilinear', 0), ('bilinear', 0.5), ('bilinear', 1),
    ]  # fmt: skip
    for row in rows:
        still = float(row['shift']) == 0
        assert (float(row['consistency']) == 1) == still
        assert (row['consistency'] == row['worst_consistency']) == still
        assert float(row['worst_mIoU']) <= float(row['mIoU'])
        assert int(row['shifts']) == (1 if still else 8)
    assert min(read_image(tmp_path / 'shifts.png').shape[:2]) > 300
    out = capsys.readouterr().out
    assert '1 of 1 images' in out
    assert f'{100 * float(rows[-1]["worst_mIoU"]):.2f}' in out


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--max-shift', '20', '--kinds', 'crop'], '--kinds crop: an image of 64 x 64 pixels'),
        (['--divisor', '128'], 'smaller than --divisor 128'),
    ],
)
def test_mistakes_get_one_message(
    model: tuple[str, Path], ade20k: Path, tmp_path: Path, words: list[str], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit) as stop:
        run_tool('shift_consistency', *model, '--data-root', ade20k, '--out-dir', tmp_path, *words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_help_is_quick() -> None:
    command = [sys.executable, '-X', 'importtime', TOOLS / 'shift_consistency.py', '--help']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 'worst consistency' in done.stdout
    assert not any(heavy in done.stderr for heavy in ('| torch\n', 'numpy\n', 'mmengine\n'))


def test_detectors_are_refused_before_their_data_are_missed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        run_tool('shift_consistency', 'maskrcnn_evt_t_coco_1x', 'none')
    assert end.value.code == 2
    assert 'this is the config of a detector' in capsys.readouterr().err
