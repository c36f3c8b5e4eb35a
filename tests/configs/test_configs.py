from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, init_default_scope
from torch import nn

from mmspatial.apis.configs import config_folder

FOLDER = config_folder()
LEAVES = sorted(file.stem for file in FOLDER.glob('*.py'))
CHANNELS = {
    't': [64, 128, 256, 512],
    's': [64, 128, 256, 512],
    'b': [80, 160, 320, 512],
    'l': [112, 224, 448, 640],
}
SHIPPED = {
    *(f'upernet_{name}_{size}_ade20k' for name in ('evt', 'rmt') for size in 'sbl'),
    *(f'semfpn_{name}_{size}_ade20k' for name in ('evt', 'rmt') for size in 'tsbl'),
    *(f'maskrcnn_{name}_{size}_coco_1x' for name in ('evt', 'rmt') for size in 'tsbl'),
}


def load(name: str) -> Config:
    return Config.fromfile(FOLDER / f'{name}.py')


def test_the_promised_configs_exist() -> None:
    assert set(LEAVES) >= SHIPPED


def test_base_names_are_unique() -> None:
    names = Counter(file.name for file in FOLDER.rglob('*.py'))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize('file', sorted(FOLDER.rglob('*.py')), ids=lambda file: file.stem)
def test_file_keeps_the_rules(file: Path) -> None:
    text = file.read_text()
    forbidden = r'_delete_|https?:|environ|\{\{|mmseg::|mmdet::|SyncBN|[\'"]/|read_base'
    assert re.findall(forbidden, text) == []
    assert text.count('PolyLR') == text.count('eta_min')
    if file.parent == FOLDER:
        assert len(text.splitlines()) <= 12


@pytest.mark.parametrize('name', sorted(SHIPPED))
def test_leaf_builds_with_fitting_channels(name: str) -> None:
    cfg = load(name)
    _, backbone, size, *_ = name.split('_')
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert type(model.backbone).__name__ == backbone.upper()
    assert list(model.backbone.out_channels) == CHANNELS[size]
    if model.with_neck:
        assert model.neck.in_channels == CHANNELS[size]
    else:
        assert model.decode_head.in_channels == CHANNELS[size]
        assert model.auxiliary_head.in_channels == CHANNELS[size][2]
    if cfg.default_scope == 'mmseg':
        assert model.decode_head.num_classes == 150
        assert tuple(cfg.model.data_preprocessor['size']) == (512, 512)


@pytest.mark.parametrize('name', ['upernet_evt_s_ade20k', 'maskrcnn_evt_t_coco_1x'])
def test_swapping_the_backbone_is_one_line(name: str) -> None:
    evt, rmt = ((FOLDER / f'{leaf}.py').read_text() for leaf in (name, name.replace('evt', 'rmt')))
    changed = [(a, b) for a, b in zip(evt.splitlines(), rmt.splitlines(), strict=True) if a != b]
    assert len(changed) == 1
    assert '_base_/backbones/' in changed[0][0]


def rates(cfg: Config, steps_per_epoch: int, wanted: list[int]) -> dict[int, float]:
    """Step through a schedule as MMEngine's hook does; return the rate used at some iterations."""
    init_default_scope('mmengine')
    model = nn.Linear(1, 1)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper.copy()).optimizer
    by_iter, by_epoch = [], []
    for schedule in cfg.param_scheduler:
        scheduler = PARAM_SCHEDULERS.build(dict(schedule), default_args={'optimizer': optimizer})
        (by_epoch if schedule.by_epoch else by_iter).append(scheduler)
    found = {}
    optimizer.step()
    for iteration in range(max(wanted) + 1):
        if iteration in wanted:
            found[iteration] = optimizer.param_groups[0]['lr']
        for scheduler in by_iter:
            scheduler.step()
        if (iteration + 1) % steps_per_epoch == 0:
            for scheduler in by_epoch:
                scheduler.step()
    return found


def test_upernet_rate_warms_up_and_falls_to_zero() -> None:
    found = rates(load('upernet_evt_b_ade20k'), 10**9, [0, 750, 1500, 80_750, 159_999])
    assert found[0] == pytest.approx(6e-5 * 1e-6)
    assert found[750] == pytest.approx(6e-5 * 750 / 1499, rel=1e-3)
    assert found[1500] == pytest.approx(6e-5, rel=1e-3)
    assert found[80_750] == pytest.approx(3e-5, rel=1e-3)
    assert found[159_999] == pytest.approx(0, abs=1e-12)


def test_semfpn_rate_is_poly() -> None:
    found = rates(load('semfpn_evt_b_ade20k'), 10**9, [0, 40_000, 79_999])
    assert found[0] == pytest.approx(1e-4)
    assert found[40_000] == pytest.approx(1e-6 + (1e-4 - 1e-6) * 0.5**0.9, rel=1e-3)
    assert found[79_999] == pytest.approx(1e-6, rel=0.01)


def test_maskrcnn_rate_drops_at_epochs_8_and_11() -> None:
    epoch = 600
    found = rates(
        load('maskrcnn_evt_b_coco_1x'),
        epoch,
        [0, 500, 8 * epoch - 1, 8 * epoch, 11 * epoch - 1, 11 * epoch, 12 * epoch - 1],
    )
    steps = [1e-7, 1e-4, 1e-4, 1e-5, 1e-5, 1e-6, 1e-6]
    assert list(found.values()) == pytest.approx(steps, rel=1e-3)


@pytest.mark.parametrize(
    ('name', 'decay', 'length'),
    [
        ('upernet_rmt_b_ade20k', 0.01, dict(max_iters=160_000)),
        ('semfpn_rmt_b_ade20k', 1e-4, dict(max_iters=80_000)),
        ('maskrcnn_rmt_b_coco_1x', 0.05, dict(max_epochs=12)),
    ],
)
def test_recipe(name: str, decay: float, length: dict[str, int]) -> None:
    cfg = load(name)
    assert {key: cfg.train_cfg[key] for key in length} == length
    assert cfg.optim_wrapper.optimizer.weight_decay == decay
    assert cfg.train_dataloader.batch_size * 8 == cfg.auto_scale_lr.base_batch_size == 16

    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    init_default_scope(cfg.default_scope)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper.copy()).optimizer
    decays: dict[int, Any] = {
        id(group['params'][0]): group['weight_decay'] for group in optimizer.param_groups
    }
    assert decays[id(model[0].weight)] == decay
    assert decays[id(model[1].weight)] == decays[id(model[1].bias)] == 0


def test_tta_and_hooks_of_segmentors() -> None:
    cfg = load('upernet_evt_s_ade20k')
    scales, flips, *_ = cfg.tta_pipeline[1].transforms
    assert (len(scales), [flip.prob for flip in flips]) == (6, [0.0, 1.0])
    assert not cfg.find_unused_parameters
    assert cfg.default_hooks.checkpoint.max_keep_ckpts > 1
