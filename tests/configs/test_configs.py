"""What every config says, whatever it is for; `test_steps.py` runs them."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from leaves import FOLDER, LEAVES, SIZES, load, parts
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS, init_default_scope
from torch import nn

from mmspatial.apis.backbones import check_channels
from mmspatial.models.builder import backbone_classes
from mmspatial.registry import MODELS

# What the papers report, or would have; words in parentheses are alternatives.
PROMISED = """
    upernet_(evt|rmt)_(s|b|l)_ade20k
    semfpn_(evt|rmt)_(t|s|b|l)_ade20k
    maskrcnn_(evt|rmt)_(t|s|b|l)_coco_1x
    (maskrcnn|cascade)_(evt|rmt)_(s|b)_coco_3x
    retinanet_(evt|rmt)_(t|s|b|l)_coco_1x
    upernet_(evt|rmt)_swin_(t|s)_ade20k
    maskrcnn_(evt|rmt)_swin_(t|s)_coco_1x
    upernet_evt_swin_b_ade20k
    maskrcnn_evt_swin_b_coco_1x
    semfpn_sdt_(t|s|b)_ade20k
    upernet_(sdt|locatvit|vit)_(t|s|b)_ade20k
    maskrcnn_(sdt|locatvit|vit)_(t|s|b)_coco_1x
    probe_(locatvit|vit)_(t|s|b)_(ade20k|pascal59|cocostuff)
    probe_locatswin_(t|b)_ade20k
    (probe|linear|upernet)_aliasfree_(t|s)_ade20k
    linear_(evt|rmt)_(t|s|b|l)_ade20k
    linear_(sdt|locatvit|vit|evt_deit|rmt_deit|sdt_deit)_(t|s|b)_ade20k
    linear_locatswin_(t|b)_ade20k
"""
CROPS = {
    'ade20k': (512, 512), 'cocostuff': (512, 512), 'pascal59': (480, 480), 'scenes': (96, 128)
}  # fmt: skip
CLASSES = {'ade20k': 150, 'cocostuff': 171, 'pascal59': 59, 'coco': 80}
EPOCH = 1000


class Recipe(NamedTuple):
    """A schedule as the papers print it.

    Attributes:
        decay: Weight decay of AdamW.
        batch: Images per GPU.
        gpus: Number of them.
        length: Of the training, in the words of `train_cfg`.
        rates: Learning rate at some iterations, in epochs of `EPOCH` iterations: at the start,
            after the warm-up, in the middle or around steps, just before the end, in the last one.
    """

    decay: float
    batch: int
    gpus: int
    length: dict[str, int]
    rates: dict[int, float]


def steps_of(rate: float, first: int, second: int, last: int) -> dict[int, float]:
    """Return the rates of a detector's schedule, with steps after some epochs."""
    first, second, last = first * EPOCH, second * EPOCH, last * EPOCH
    return {
        0: rate * 1e-3, 250: rate * 0.5, 500: rate, first - 1: rate, first: rate * 0.1,
        second - 1: rate * 0.1, second: rate * 0.01, last - 1: rate * 0.01,
    }  # fmt: skip


_DET_1X = Recipe(0.05, 2, 8, dict(max_epochs=12), steps_of(1e-4, 8, 11, 12))
_DET_3X = Recipe(0.05, 2, 8, dict(max_epochs=36), steps_of(1e-4, 27, 33, 36))
_PROBE = Recipe(
    0.01, 4, 8, dict(max_iters=20_000),
    {0: 1e-7, 2_500: 5e-4, 5_000: 1e-3, 12_500: 5e-4, 19_000: 1e-3 / 15, 19_999: 1e-11},
)  # fmt: skip
RECIPES = {
    'upernet': Recipe(
        0.01, 2, 8, dict(max_iters=160_000),
        {0: 6e-11, 750: 3e-5, 1_500: 6e-5, 80_750: 3e-5, 159_000: 6e-5 / 158.5, 159_999: 0.0},
    ),
    'semfpn': Recipe(
        1e-4, 2, 8, dict(max_iters=80_000),
        {
            iteration: 1e-6 + (1e-4 - 1e-6) * (1 - iteration / 80_000) ** 0.9
            for iteration in (0, 1_500, 40_000, 79_000)
        } | {79_999: 1e-6},
    ),
    'maskrcnn_1x': _DET_1X,
    'maskrcnn_3x': _DET_3X,
    'cascade_3x': _DET_3X,
    'retinanet_1x': _DET_1X._replace(decay=1e-4),
    'linear': _PROBE,
    'probe': _PROBE,
    'upernet_scenes': Recipe(
        0.01, 8, 1, dict(max_iters=600),
        {0: 7.5e-5, 20: 1.5e-3, 310: 7.5e-4, 579: 5.18e-5, 599: 0.0},
    ),
    'maskrcnn_scenes': Recipe(
        0.05, 4, 1, dict(max_epochs=5),
        {0: 1.6e-5, 50: 8e-4, 4 * EPOCH - 1: 8e-4, 4 * EPOCH: 1.6e-4, 5 * EPOCH - 1: 1.6e-4},
    ),
}  # fmt: skip


def recipe(name: str) -> Recipe:
    words = parts(name)
    variant = 'scenes' if words.dataset == 'scenes' else words.schedule
    return RECIPES[f'{words.head}_{variant}' if variant else words.head]


def spell_out(pattern: str) -> Iterator[str]:
    """Yield every choice in such as ``upernet_(evt|rmt)_(s|b)``."""
    pieces = re.split(r'\((.*?)\)', pattern)
    choices = [piece.split('|') if i % 2 else [piece] for i, piece in enumerate(pieces)]
    yield from map(''.join, itertools.product(*choices))


def strings(settings: Any) -> Iterator[str]:
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, (dict, list, tuple)):
        for value in settings.values() if isinstance(settings, dict) else settings:
            yield from strings(value)


def test_the_promised_configs_exist() -> None:
    promised = {name for pattern in PROMISED.split() for name in spell_out(pattern)}
    assert promised - set(LEAVES) == set()


def test_base_names_are_unique() -> None:
    names = Counter(file.name for file in FOLDER.rglob('*.py'))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_backbone_file_is_used() -> None:
    files = {file.stem for file in (FOLDER / '_base_' / 'backbones').glob('*.py')}
    assert files == {'_'.join(parts(name)[1:3]) for name in LEAVES}


@pytest.mark.parametrize('file', sorted(FOLDER.rglob('*.py')), ids=lambda file: file.stem)
def test_file_keeps_the_rules(file: Path) -> None:
    text = file.read_text()
    forbidden = r'_delete_|https?:|environ|\{\{|mmseg::|mmdet::|SyncBN|[\'"]/|read_base'
    assert re.findall(forbidden, text) == []
    assert text.count('PolyLR') == text.count('eta_min')
    if file.parent == FOLDER:
        assert len(text.splitlines()) <= 12


@pytest.mark.parametrize('name', LEAVES)
def test_leaf_needs_nothing_around_it(name: str) -> None:
    """No import of the user's, no file or address elsewhere, whole loops, any number of GPUs."""
    cfg, words = load(name), parts(name)
    of_segmentors = words.head in ('upernet', 'semfpn', 'linear', 'probe')
    assert cfg.default_scope == ('mmseg' if of_segmentors else 'mmdet')
    assert cfg.custom_imports == dict(imports=['mmspatial'], allow_failed_imports=False)
    outside = re.compile(r'^[/~]|^[A-Za-z]:|://|\.\.')
    assert [text for text in strings(cfg.to_dict()) if outside.search(text)] == []
    assert cfg.load_from is None
    assert not cfg.find_unused_parameters
    assert cfg.sync_bn == 'torch'
    assert {'val_cfg', 'test_cfg', 'val_evaluator', 'test_evaluator'} <= cfg.keys()


@pytest.mark.parametrize('name', LEAVES)
def test_leaf_has_the_sizes_of_its_data(name: str) -> None:
    cfg, words = load(name), parts(name)
    preprocessor = cfg.model.data_preprocessor
    if cfg.default_scope == 'mmdet':
        assert preprocessor.pad_size_divisor == 32
        return
    (crop,) = (step for step in cfg.train_dataloader.dataset.pipeline if step.type == 'RandomCrop')
    assert tuple(preprocessor.size) == tuple(crop.crop_size) == CROPS[words.dataset]
    assert cfg.model.test_cfg.mode == 'whole'
    wanted = CLASSES.get(words.dataset, 16)
    heads = [cfg.model[key] for key in ('decode_head', 'auxiliary_head') if key in cfg.model]
    assert [head.num_classes for head in heads] == [wanted] * len(heads)


@functools.cache
def output_channels(backbone: str) -> tuple[int, ...]:
    """Build a backbone from its settings in JSON."""
    with torch.device('meta'):
        return MODELS.build(json.loads(backbone)).out_channels


@pytest.mark.parametrize('name', LEAVES)
def test_leaf_has_the_backbone_of_its_name(name: str) -> None:
    cfg, words = load(name), parts(name)
    backbone = cfg.model.backbone
    family, _, carrier = words.backbone.partition('_')
    assert backbone.type == f'mmspatial.{backbone_classes()[family].__name__}'
    if size := SIZES[words.size]:
        assert backbone.arch == (f'{carrier}_{size}' if carrier else size)
    check_channels(cfg.model, output_channels(json.dumps(backbone.to_dict())))


def rates_of(cfg: Config, wanted: list[int]) -> list[float]:
    """Return the learning rate at some iterations, as MMEngine's own schedulers have it."""
    settings = [dict(cfg.optim_wrapper.optimizer), *map(dict, cfg.param_scheduler)]
    return _step_through(json.dumps(settings), tuple(wanted))


@functools.cache
def _step_through(settings: str, wanted: tuple[int, ...]) -> list[float]:
    """Step through schedules as MMEngine's hook does; once for all configs which share them."""
    optimizer, *schedules = json.loads(settings)
    optimizer.pop('type')
    optimizer = torch.optim.AdamW(nn.Linear(1, 1).parameters(), **optimizer)
    by_iter, by_epoch = [], []
    with PARAM_SCHEDULERS.switch_scope_and_registry('mmengine') as registry:
        for schedule in schedules:
            by = by_epoch if schedule['by_epoch'] else by_iter
            by.append(registry.build(schedule, default_args={'optimizer': optimizer}))
    optimizer.step()
    found = []
    for iteration in range(max(wanted) + 1):
        if iteration in wanted:
            found.append(optimizer.param_groups[0]['lr'])
        for scheduler in by_iter:
            scheduler.step()
        if (iteration + 1) % EPOCH == 0:
            for scheduler in by_epoch:
                scheduler.step()
    return found


@pytest.mark.parametrize('name', LEAVES)
def test_leaf_keeps_its_recipe(name: str) -> None:
    cfg, wanted = load(name), recipe(name)
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.betas) == ('AdamW', (0.9, 0.999))
    assert optimizer.weight_decay == wanted.decay
    assert {key: cfg.train_cfg[key] for key in wanted.length} == wanted.length
    assert cfg.train_dataloader.batch_size == wanted.batch
    assert cfg.auto_scale_lr == dict(enable=False, base_batch_size=wanted.batch * wanted.gpus)
    assert len(wanted.rates) >= 5
    found = rates_of(cfg, list(wanted.rates))
    assert found == pytest.approx(list(wanted.rates.values()), rel=5e-3, abs=1e-12)


def test_decay_is_not_for_norms() -> None:
    cfg = load('maskrcnn_rmt_b_coco_1x')
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    init_default_scope(cfg.default_scope)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper.copy()).optimizer
    decays = {id(group['params'][0]): group['weight_decay'] for group in optimizer.param_groups}
    assert decays[id(model[0].weight)] == 0.05
    assert decays[id(model[1].weight)] == decays[id(model[1].bias)] == 0


def test_heads_of_segmentors() -> None:
    model = load('upernet_evt_b_ade20k').model
    head, aux = model.decode_head, model.auxiliary_head
    assert (head.type, head.channels, head.loss_decode.loss_weight) == ('UPerHead', 512, 1.0)
    assert (aux.type, aux.channels, aux.in_index) == ('FCNHead', 256, 2)
    assert aux.loss_decode.loss_weight == 0.4
    model = load('semfpn_evt_b_ade20k').model
    assert (model.neck.type, model.neck.out_channels) == ('FPN', 256)
    head = model.decode_head
    assert (head.type, head.channels, head.dropout_ratio) == ('FPNHead', 128, 0.1)


def test_heads_of_detectors() -> None:
    model = load('maskrcnn_rmt_s_coco_3x').model
    assert (model.type, model.neck.out_channels) == ('MaskRCNN', 256)
    model = load('cascade_rmt_s_coco_3x').model
    heads, stages = model.roi_head.bbox_head, model.train_cfg.rcnn
    assert [head.bbox_coder.target_stds[0] for head in heads] == [0.1, 0.05, 0.033]
    assert [stage.assigner.pos_iou_thr for stage in stages] == [0.5, 0.6, 0.7]
    assert all(head.num_shared_convs == 4 and head.norm_cfg.type == 'BN' for head in heads)
    assert model.roi_head.mask_head.num_classes == 80
    model = load('retinanet_rmt_s_coco_1x').model
    assert model.backbone.out_indices == [1, 2, 3]
    assert model.bbox_head.anchor_generator.strides == [8, 16, 32, 64, 128]


def test_images_of_long_detector_schedules() -> None:
    """Half resized to short sides of 480 to 800; half resized, cropped to 384x600, resized."""
    pipeline = load('maskrcnn_evt_s_coco_3x').train_dataloader.dataset.pipeline
    (choice,) = (step for step in pipeline if step.type == 'RandomChoice')
    (resize,), (first, crop, last) = choice.transforms
    assert resize == last
    assert resize.scales == [(1333, short) for short in range(480, 801, 32)]
    assert [scale[1] for scale in first.scales] == [400, 500, 600]
    assert tuple(crop.crop_size) == (384, 600)
    short = load('maskrcnn_evt_s_coco_1x').train_dataloader.dataset.pipeline
    assert [step.scale for step in short if step.type == 'Resize'] == [(1333, 800)]


def test_images_of_segmentors() -> None:
    cfg = load('upernet_evt_s_ade20k')
    (resize,) = (step for step in cfg.train_dataloader.dataset.pipeline if 'ratio_range' in step)
    assert (resize.scale, resize.ratio_range) == ((2048, 512), (0.5, 2.0))
    scales, flips, *_ = cfg.tta_pipeline[1].transforms
    assert (len(scales), [flip.prob for flip in flips]) == (6, [0.0, 1.0])
    assert cfg.default_hooks.checkpoint.max_keep_ckpts > 1


@pytest.mark.parametrize(
    'name',
    ['upernet_evt_s_ade20k', 'maskrcnn_evt_t_coco_1x', 'cascade_evt_b_coco_3x',
     'retinanet_evt_l_coco_1x'],
)  # fmt: skip
def test_swapping_the_backbone_is_one_line(name: str) -> None:
    evt, rmt = ((FOLDER / f'{leaf}.py').read_text() for leaf in (name, name.replace('evt', 'rmt')))
    changed = [(a, b) for a, b in zip(evt.splitlines(), rmt.splitlines(), strict=True) if a != b]
    assert len(changed) == 1
    assert '_base_/backbones/' in changed[0][0]
