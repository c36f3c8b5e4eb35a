"""A probe trains its head and nothing else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, init_default_scope
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from timm.layers import DropPath
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmspatial import build_backbone
from mmspatial.apis.backbones import swap_backbone
from mmspatial.apis.configs import config_folder, read_config
from mmspatial.models.trunks import backbone as trunk

PYRAMID = dict(embed_dims=[8, 16, 16, 32], depths=1, num_heads=2, mlp_ratios=2)
PLAIN = dict(embed_dims=32, depth=12, num_heads=2, patch_size=16)
CASES = {
    'linear_evt_t_ade20k': PYRAMID,
    'probe_locatvit_t_ade20k': dict(PLAIN, img_size=64),
    'probe_aliasfree_t_ade20k': PLAIN,
}


def build(name: str, arch: dict[str, Any]) -> tuple[Config, nn.Module]:
    cfg = read_config(name)
    cfg.model.backbone.update(arch=arch, drop_path_rate=0.5)
    cfg.model.decode_head.in_channels = 32
    cfg.model.data_preprocessor.size = (64, 64)
    init_default_scope('mmseg')
    return cfg, MODELS.build(cfg.model)


def batch() -> dict[str, list]:
    samples = []
    for _ in range(2):
        truth = PixelData(data=torch.randint(150, (1, 64, 64)))
        samples.append(SegDataSample(gt_sem_seg=truth, metainfo=dict(img_shape=(64, 64))))
    return dict(inputs=list(torch.randint(255, (2, 3, 64, 64))), data_samples=samples)


@pytest.mark.parametrize('name', CASES)
def test_a_probe_leaves_its_backbone_alone(name: str) -> None:
    cfg, model = build(name, CASES[name])
    model.init_weights()
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    before = copy.deepcopy(model.state_dict())
    model.train()
    layers = [m for m in model.backbone.modules() if isinstance(m, (_BatchNorm, DropPath))]
    assert any(isinstance(m, _BatchNorm) for m in layers) == ('locatvit' not in name)
    assert not any(m.training for m in layers)

    x = torch.randn(1, 3, 64, 64)
    maps = model.backbone(x)
    # Neither drop path nor batch statistics: a second look gives the same.
    assert all(map(torch.equal, maps, model.backbone(x)))
    assert not any(y.requires_grad for y in maps)

    for _ in range(2):
        model.train_step(batch(), wrapper)
    head = {id(p) for p in model.decode_head.parameters()}
    assert {id(p) for p in wrapper.optimizer.state} == head
    assert all(p.grad is None for p in model.backbone.parameters())
    for key, value in model.state_dict().items():
        if key.startswith('backbone.'):
            assert torch.equal(value, before[key]), key
        elif key.endswith(('weight', 'bias')):
            assert not torch.equal(value, before[key]), key


@pytest.mark.parametrize(('name', 'arch'), [('EVT', PYRAMID), ('LocAtViT', dict(PLAIN, depth=2))])
def test_all_is_every_stage_and_every_norm(name: str, arch: dict[str, Any]) -> None:
    model = build_backbone(name, arch=arch, frozen_stages='all').train()
    assert not any(p.requires_grad for p in model.parameters())
    assert model.frozen_stages == len(model.stages)
    with pytest.raises(ValueError, match=r"frozen_stages='most', but there are .* or 'all'"):
        build_backbone(name, arch=arch, frozen_stages='most')


def test_random_frozen_stages_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = []
    monkeypatch.setattr(trunk, 'print_log', lambda text, **_: said.append(text))
    model = build_backbone('EVT', arch=PYRAMID)
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    assert said == []
    build_backbone('EVT', arch=PYRAMID, frozen_stages=0)
    assert ['keeps random weights' in text for text in said] == [True]
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'weights.pth'))
    build_backbone('EVT', arch=PYRAMID, frozen_stages='all', init_cfg=init_cfg)
    assert ['100.0% of the parameters' in text for text in said] == [False, True]


@pytest.mark.parametrize('word', ['linear', 'probe'])
def test_names_tell_the_two_probes_apart(word: str) -> None:
    files = list(config_folder().glob(f'{word}_*.py'))
    assert len(files) > 20
    assert [f.name for f in files if f'_base_/heads/{word}.py' not in f.read_text()] == []
    head = Config.fromfile(config_folder() / '_base_' / 'heads' / f'{word}.py').model.decode_head
    assert head.type == {'linear': 'mmspatial.LinearHead', 'probe': 'mmspatial.MLPHead'}[word]


def test_swapping_the_backbone_of_a_probe_keeps_it_frozen() -> None:
    cfg = read_config('probe_locatvit_t_ade20k')
    swap_backbone(cfg, 'rmt_s', config_folder() / '_base_' / 'backbones')
    assert cfg.model.backbone == dict(type='mmspatial.RMT', arch='small', frozen_stages='all')
    assert cfg.model.decode_head.in_channels == 512


def rates(cfg: Config, scale: float) -> list[float]:
    """Return the rate of every iteration, after `--auto-scale-lr` has multiplied it."""
    init_default_scope('mmengine')
    wrapper = build_optim_wrapper(nn.Linear(1, 1), cfg.optim_wrapper)
    wrapper.optimizer.param_groups[0]['lr'] *= scale
    schedulers = [
        PARAM_SCHEDULERS.build(dict(schedule), default_args=dict(optimizer=wrapper.optimizer))
        for schedule in cfg.param_scheduler
    ]
    found = []
    for _ in range(cfg.train_cfg.max_iters):
        found.append(wrapper.optimizer.param_groups[0]['lr'])
        for scheduler in schedulers:
            scheduler.step()
    return found


def test_the_probes_rate_is_one_cycle_and_can_be_scaled() -> None:
    cfg = read_config('probe_vit_b_ade20k')
    assert cfg.train_dataloader.batch_size * 8 == cfg.auto_scale_lr.base_batch_size == 32
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-3, 20_000, pct_start=0.25, anneal_strategy='linear', div_factor=1e4,
        final_div_factor=1e4, cycle_momentum=False,
    )  # fmt: skip
    expected = []
    optimizer.step()
    for _ in range(20_000):
        expected.append(optimizer.param_groups[0]['lr'])
        cycle.step()
    found = rates(cfg, 1)
    assert found[0] == pytest.approx(1e-7)
    assert found[-1] == pytest.approx(1e-11, rel=1e-3)
    # The way down begins an iteration later than PyTorch's, which is 7e-5 of it.
    assert found == pytest.approx(expected, rel=2e-4, abs=1e-7)
    assert rates(cfg, 2) == pytest.approx([2 * rate for rate in found])
