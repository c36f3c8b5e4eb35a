"""Configs train and test on drawn scenes: all of them, some with fewer, narrower layers."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from leaves import FOLDER, LEAVES, examples, load, parts
from mmengine.config import Config
from mmengine.logging import MMLogger
from steps import Steps, draw_scenes, shrink, thin, train_and_test


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """MMEngine logs a line for every parameter that a host's `init_weights` looks at."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel('WARNING')
    yield
    logger.setLevel(level)


@pytest.fixture(scope='session')
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return draw_scenes(tmp_path_factory.mktemp('scenes'))


def check(cfg: Config, steps: Steps) -> None:
    """Losses are sound, everything that should learn does, predictions fit the data set."""
    losses = {key: float(value) for key, value in steps.losses.items()}
    assert all(map(math.isfinite, losses.values())), losses
    assert losses['loss'] > 0

    trained = {name for name, value in steps.model.named_parameters() if value.requires_grad}
    # A parameter without a gradient has no state, and would stop distributed training.
    assert steps.updated == trained
    is_probe = cfg.model.backbone.get('frozen_stages') == 'all'
    assert any(name.startswith('backbone.') for name in trained) != is_probe

    prediction = steps.prediction
    if cfg.default_scope == 'mmseg':
        shape = prediction.gt_sem_seg.data.shape[1:]
        assert prediction.seg_logits.data.shape == (len(steps.classes), *shape)
        assert torch.isfinite(prediction.seg_logits.data).all()
        assert 0 <= steps.metrics['mIoU'] <= 100
    else:
        found = prediction.pred_instances
        assert len(found) > 0
        assert torch.isfinite(found.bboxes).all()
        assert int(found.labels.max()) < len(steps.classes)
        has_masks = 'mask_head' in cfg.model.get('roi_head', {})
        assert {key for key in steps.metrics if key.endswith('mAP')} == {
            'coco/bbox_mAP', *(['coco/segm_mAP'] if has_masks else [])
        }  # fmt: skip
        if has_masks:
            assert found.masks.shape == (len(found), *prediction.ori_shape)


@pytest.mark.parametrize('name', examples())
def test_thin_config_takes_a_step(name: str, scenes: dict[str, Path]) -> None:
    cfg = copy.deepcopy(load(name))
    shrink(cfg)
    thin(cfg)
    check(cfg, train_and_test(cfg, scenes))


@pytest.mark.slow
@pytest.mark.parametrize(
    'name',
    ['linear_sdt_t_ade20k', 'probe_locatswin_t_ade20k', 'upernet_vit_t_ade20k',
     'maskrcnn_locatvit_t_coco_1x', 'retinanet_rmt_t_coco_1x'],
)  # fmt: skip
def test_config_builds_with_nothing_imported_before(name: str) -> None:
    """Of each kind that has a head, neck or host of its own, in a fresh interpreter."""
    code = f"""
import sys
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
assert not {{'mmspatial', 'mmseg', 'mmdet'}} & sys.modules.keys()
cfg = Config.fromfile({str(FOLDER / f'{name}.py')!r})
init_default_scope(cfg.default_scope)
with torch.device('meta'):
    print(type(MODELS.build(cfg.model).backbone).__name__)
"""
    done = subprocess.run(
        [sys.executable, '-c', code], cwd=FOLDER.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = load(name).model.backbone.type.removeprefix('mmspatial.')
    assert done.stdout.splitlines()[-1] == wanted


@pytest.mark.slow
@pytest.mark.parametrize('name', LEAVES)
def test_config_takes_a_step(name: str, scenes: dict[str, Path]) -> None:
    """At full depth up to size s, whose larger siblings differ from it in depth and width only."""
    cfg = copy.deepcopy(load(name))
    if parts(name).dataset != 'scenes':
        shrink(cfg)
    if parts(name).size in ('b', 'l'):
        thin(cfg)
    check(cfg, train_and_test(cfg, scenes))
