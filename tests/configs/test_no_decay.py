from __future__ import annotations

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper

from mmspatial import build_backbone
from mmspatial.apis.configs import config_folder


@pytest.mark.parametrize(
    ('name', 'arch', 'free'),
    [
        ('EVT', 'deit_tiny', {'pos_embed', 'cls_token'}),
        ('SDT', dict(depths=(1, 1, 1, 1), layer_scale=1e-6), {'gate_bias', 'alpha', 'gamma'}),
        ('LocAtViT', 'tiny', {'pos_embed', 'cls_token'}),
        ('LocAtSwin', 'tiny', {'bias_table'}),
        ('AliasFreeViT', 'nano', {'gamma', 'temperature'}),
    ],
)
def test_decay_spares_norms_and_what_is_no_weight(
    name: str, arch: str | dict, free: set[str]
) -> None:
    cfg = Config.fromfile(config_folder() / '_base_' / 'schedules' / 'seg_160k.py')
    model = build_backbone(name, arch=arch)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decays = {
        id(parameter): group['weight_decay']
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    of_norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, (torch.nn.LayerNorm, torch.nn.BatchNorm2d))
        for parameter in module.parameters()
    }
    seen = set()
    for key, parameter in model.named_parameters():
        last = key.rpartition('.')[2]
        seen.add(last)
        spared = id(parameter) in of_norms or last in free
        assert decays[id(parameter)] == (0.0 if spared else 0.01), key
    assert free <= seen
