from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config

from mmspatial.apis import UserError
from mmspatial.apis.backbones import check_backbone, check_channels, swap_backbone
from mmspatial.apis.configs import (
    config_folder,
    find_config,
    load_config,
    merge_options,
    read_config,
)
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


@pytest.mark.parametrize(
    'head',
    [
        'upernet_{}_ade20k', 'semfpn_{}_ade20k', 'maskrcnn_{}_coco_1x', 'retinanet_{}_coco_1x',
    ],
)  # fmt: skip
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


def test_swapping_drops_what_belongs_to_the_old_backbone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = config_folder() / 'upernet_evt_b_ade20k.py'
    file = tmp_path / 'child.py'
    settings = "arch='tiny', with_cp=True, only_of_evt=1, drop_path_rate=0.7"
    file.write_text(f"_base_ = ['{base}']\nmodel = dict(backbone=dict({settings}))\n")
    folder = tmp_path / 'backbones'
    folder.mkdir()
    (folder / 'rmt_s.py').write_text(
        "backbone = dict(type='mmspatial.RMT', arch='small', drop_path_rate=0.2)\n"
        'channels = [64, 128, 256, 512]\n'
    )
    cfg = read_config(str(file))
    swap_backbone(cfg, 'rmt_s', folder)
    assert cfg.model.backbone == dict(
        type='mmspatial.RMT', arch='small', drop_path_rate=0.2, with_cp=True
    )
    assert 'mmspatial.RMT: only_of_evt, drop_path_rate' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('leaf', 'first', 'setting'),
    [
        ('upernet_evt_b_ade20k', 'decode_head', '[64,128,256,512]'),
        ('semfpn_evt_b_ade20k', 'neck', '[64,128,256,512]'),
        ('maskrcnn_evt_b_coco_1x', 'neck', '[64,128,256,512]'),
    ],
)
def test_heads_for_another_backbone_are_refused(leaf: str, first: str, setting: str) -> None:
    model, tiny = read_config(leaf).model, (64, 128, 256, 512)
    check_channels(model, (80, 160, 320, 512))
    with pytest.raises(UserError) as caught:
        check_channels(model, tiny)
    assert f'model.{first}.in_channels is [80, 160, 320, 512]' in str(caught.value)
    assert f'Set model.{first}.in_channels={setting}' in str(caught.value)
    model[first].in_channels = [64, 128, 256, 512]
    if 'auxiliary_head' in model:
        with pytest.raises(UserError, match=r'Set model\.auxiliary_head\.in_channels=256'):
            check_channels(model, tiny)
        model.auxiliary_head.in_channels = 256
    check_channels(model, tiny)


def test_heads_cannot_read_outputs_that_do_not_exist() -> None:
    with pytest.raises(UserError, match=r'in_index is .* has 2 outputs'):
        check_channels(read_config('upernet_evt_b_ade20k').model, (64, 128))


def test_unknown_backbones_list_the_known_ones() -> None:
    cfg = read_config('upernet_evt_b_ade20k')
    with pytest.raises(UserError, match=r"'rmt_s'(?s:.*)evt_b, evt_deit_b"):
        swap_backbone(cfg, 'rmt_small', BACKBONES)
    cfg.model.backbone.arch = 'bse'
    with pytest.raises(UserError, match=r"'base'(?s:.*)tiny, small, base, large"):
        check_backbone(cfg)
    for model in (3, dict(backbone=3), {}):
        with pytest.raises(UserError, match='needs a config with'):
            swap_backbone(Config(dict(model=model)), 'rmt_s', BACKBONES)
    with pytest.raises(UserError, match='groups of settings'):
        check_backbone(Config(dict(model=3)))
    cfg.model.backbone.type = 'mmspatial.EVTT'
    with pytest.raises(UserError, match=r'mmspatial\.EVT'):
        check_backbone(cfg)


@pytest.mark.parametrize(
    ('option', 'message'),
    [
        ('trian_cfg.max_iters=4', 'train_cfg'),
        ('train_cfg', 'KEY=VALUE'),
        ('model=3', r'group of settings \(type'),
        ('model.backbone=3', r'such as model\.backbone\.type=VALUE'),
        ('param_scheduler.0=3', 'group of settings'),
    ],
)
def test_misspelt_options_are_refused(option: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        merge_options(read_config('upernet_evt_b_ade20k'), [option])


@pytest.mark.parametrize(
    ('option', 'hint'),
    [('train_cfg.max_iter=4', 'max_iters'), ('model.decode_head.chanels=4', 'channels')],
)
def test_options_that_look_misspelt_are_warned_of(
    option: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    merge_options(read_config('upernet_evt_b_ade20k'), [option])
    assert f"did you mean '{hint}'?" in capsys.readouterr().err


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


def test_sync_bn_becomes_bn_for_cpus() -> None:
    from mmspatial.apis.launch import _without_sync_bn

    model: Any = Config(dict(a=[dict(norm_cfg=dict(type='SyncBN'))], type='X'))._cfg_dict
    assert _without_sync_bn(model) == dict(a=[dict(norm_cfg=dict(type='BN'))], type='X')


def test_a_pyramid_and_a_plain_vit_do_not_stand_in_for_one_another() -> None:
    for name, other, kind in (
        ('upernet_evt_b_ade20k', 'locatvit_b', 'it is a plain ViT'),
        ('maskrcnn_locatvit_b_coco_1x', 'rmt_s', 'it is a pyramid'),
    ):
        with pytest.raises(UserError, match=kind):
            swap_backbone(read_config(name), other, BACKBONES)
    cfg = read_config('linear_evt_b_ade20k')
    swap_backbone(cfg, 'locatvit_b', BACKBONES)
    assert cfg.model.backbone.type == 'mmspatial.LocAtViT'
