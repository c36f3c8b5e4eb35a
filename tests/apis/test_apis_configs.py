from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config

from mmspatial.apis import UserError
from mmspatial.apis.backbones import check_backbone, swap_backbone
from mmspatial.apis.configs import (
    config_folder,
    find_config,
    load_config,
    merge_options,
    read_config,
)
from mmspatial.apis.data import check_data, set_data_root
from mmspatial.apis.options import parse_train_args

BACKBONES = config_folder() / '_base_' / 'backbones'


@pytest.mark.parametrize(
    'name',
    ['upernet_evt_b_ade20k', 'upernet_evt_b_ade20k.py', 'mmspatial::upernet_evt_b_ade20k.py'],
)
def test_shipped_configs_go_by_bare_names(name: str) -> None:
    assert find_config(name) == config_folder() / 'upernet_evt_b_ade20k.py'


def test_unknown_config_suggests_near_names() -> None:
    with pytest.raises(UserError, match='upernet_evt_b_ade20k'):
        find_config('configs/upernet_evt_b_ade2k.py')


def test_syntax_error_shows_the_line(tmp_path: Path) -> None:
    file = tmp_path / 'broken.py'
    file.write_text('a = 1\nb = (\n')
    with pytest.raises(UserError, match=r'broken\.py.*line 2: b = \('):
        read_config(str(file))


def test_missing_base_is_reported(tmp_path: Path) -> None:
    file = tmp_path / 'child.py'
    file.write_text("_base_ = ['parent.py']\n")
    with pytest.raises(UserError, match=r'child\.py.*parent\.py'):
        read_config(str(file))


@pytest.mark.parametrize('head', ['upernet_{}_ade20k', 'semfpn_{}_ade20k', 'maskrcnn_{}_coco_1x'])
def test_backbone_option_equals_the_other_leaf(head: str) -> None:
    cfg = read_config(head.format('evt_b'))
    swap_backbone(cfg, 'rmt_l', BACKBONES)
    other = read_config(head.format('rmt_l'))
    assert cfg.to_dict() == other.to_dict()


def test_swapping_keeps_what_the_leaf_adds(tmp_path: Path) -> None:
    file = tmp_path / 'child.py'
    base = config_folder() / 'upernet_evt_b_ade20k.py'
    file.write_text(f"_base_ = ['{base}']\nmodel = dict(backbone=dict(with_cp=True))\n")
    cfg = read_config(str(file))
    swap_backbone(cfg, 'rmt_s', BACKBONES)
    assert cfg.model.backbone == dict(type='mmspatial.RMT', arch='small', with_cp=True)
    assert cfg.model.decode_head.in_channels == [64, 128, 256, 512]
    assert cfg.model.auxiliary_head.in_channels == 256


def test_unknown_backbones_list_the_known_ones() -> None:
    cfg = read_config('upernet_evt_b_ade20k')
    with pytest.raises(UserError, match=r"'rmt_s'(?s:.*)evt_b, evt_l"):
        swap_backbone(cfg, 'rmt_small', BACKBONES)
    cfg.model.backbone.arch = 'bse'
    with pytest.raises(UserError, match=r"'base'(?s:.*)tiny, small, base, large"):
        check_backbone(cfg)
    cfg.model.backbone.type = 'mmspatial.EVTT'
    with pytest.raises(UserError, match=r'mmspatial\.EVT'):
        check_backbone(cfg)


@pytest.mark.parametrize(
    ('option', 'message'),
    [
        ('trian_cfg.max_iters=4', 'train_cfg'),
        ('train_cfg.max_iter=4', 'max_iters'),
        ('model.decode_head.chanels=4', 'channels'),
        ('train_cfg', 'KEY=VALUE'),
    ],
)
def test_misspelt_options_are_refused(option: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        merge_options(read_config('upernet_evt_b_ade20k'), [option])


def test_options_change_the_config() -> None:
    cfg = read_config('upernet_evt_b_ade20k')
    merge_options(cfg, ['train_cfg.max_iters=4', 'sync_bn=None', 'model.test_cfg.mode=slide'])
    assert (cfg.train_cfg.max_iters, cfg.sync_bn, cfg.model.test_cfg.mode) == (4, None, 'slide')


def test_options_that_nothing_reads_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    merge_options(read_config('upernet_evt_b_ade20k'), ['crop_size=(64,64)'])
    assert "'crop_size'" in capsys.readouterr().err


def test_work_dir_follows_config_and_backbone() -> None:
    args = parse_train_args(['upernet_evt_b_ade20k', '--backbone', 'rmt_s'])
    assert load_config(args).work_dir == 'work_dirs/upernet_evt_b_ade20k_rmt_s'


@pytest.mark.parametrize(
    ('words', 'resume'),
    [([], None), (['--resume'], 'auto'), (['--resume', 'a.pth', '--local_rank=1'], 'a.pth')],
)
def test_resume_takes_a_path_or_none(words: list[str], resume: str | None) -> None:
    assert parse_train_args(['config.py', *words]).resume == resume


def test_data_root_reaches_wrapped_sets_and_evaluators() -> None:
    cfg = read_config('maskrcnn_evt_t_coco_1x')
    inner = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = dict(type='RepeatDataset', times=2, dataset=inner)
    set_data_root(cfg, '/new')
    assert cfg.train_dataloader.dataset.dataset.data_root == '/new'
    assert cfg.val_dataloader.dataset.data_root == '/new'
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        assert evaluator.ann_file == '/new/annotations/instances_val2017.json'


@pytest.mark.parametrize(
    ('name', 'archive', 'first'),
    [
        ('upernet_evt_s_ade20k', r'ADEChallengeData2016\.zip', 'images/training'),
        ('maskrcnn_evt_t_coco_1x', r'train2017\.zip', 'instances_train2017.json'),
    ],
)
def test_missing_data_shows_the_layout(tmp_path: Path, name: str, archive: str, first: str) -> None:
    cfg = read_config(name)
    set_data_root(cfg, str(tmp_path))
    with pytest.raises(UserError, match=rf'{re.escape(str(tmp_path))}(?s:.*){archive}') as caught:
        check_data(cfg, ('train', 'val'))
    assert first in str(caught.value).splitlines()[0]


def test_missing_validation_part_is_found(tmp_path: Path) -> None:
    for part in ('images/training', 'annotations/training', 'images/validation'):
        (tmp_path / part).mkdir(parents=True)
        (tmp_path / part / 'a.jpg').touch()
    (tmp_path / 'annotations/validation').mkdir()
    cfg = read_config('upernet_evt_s_ade20k')
    set_data_root(cfg, str(tmp_path))
    check_data(cfg, ('train',))
    with pytest.raises(UserError, match=r"'val'.*annotations/validation is empty"):
        check_data(cfg, ('val',))


def test_sync_bn_becomes_bn_for_cpus() -> None:
    from mmspatial.apis.launch import _without_sync_bn

    model: Any = Config(dict(a=[dict(norm_cfg=dict(type='SyncBN'))], type='X'))._cfg_dict
    assert _without_sync_bn(model) == dict(a=[dict(norm_cfg=dict(type='BN'))], type='X')
