"""Types and configs by name, each in a fresh interpreter: what was imported before matters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mmengine.hub
import pytest

ROOT = Path(__file__).parents[1]
TINY = 'dict(embed_dims=(8, 8, 8, 8), depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1))'


def run(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, '-c', f'import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


@pytest.mark.smoke
@pytest.mark.parametrize('host', ['mmengine', 'mmseg', 'mmdet'])
def test_type_resolves_with_nothing_imported_before(host: str) -> None:
    code = f"""
from {host}.registry import MODELS
print('mmspatial' in sys.modules)
model = MODELS.build(dict(type='mmspatial.EVT', arch={TINY}))
print(type(model).__module__, type(model).__name__, *model.out_channels)
"""
    assert run(code) == ['False', 'mmspatial.models.backbones.evt', 'EVT', *'8888']


@pytest.mark.smoke
@pytest.mark.parametrize('first', ['mmspatial', 'mmengine.config'])
def test_a_config_that_inherits_by_name_builds(first: str, tmp_path: Path) -> None:
    """The types of the base are then looked up in the scope 'mmspatial'."""
    leaf = tmp_path / 'leaf.py'
    leaf.write_text(
        "_base_ = ['mmspatial::upernet_evt_s_ade20k.py']\n"
        f'model = dict(backbone=dict(arch={TINY}),\n'
        '    decode_head=dict(in_channels=[8, 8, 8, 8], channels=8),\n'
        '    auxiliary_head=dict(in_channels=8, channels=8))\n'
    )
    code = f"""
import {first}, mmspatial
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
cfg = Config.fromfile({str(leaf)!r})
init_default_scope(cfg.default_scope)
model = MODELS.build(cfg.model)
for part in (model, model.backbone, model.decode_head, model.data_preprocessor):
    print(type(part).__module__.partition('.')[0], type(part).__name__)
"""
    assert run(code) == [
        'mmseg', 'EncoderDecoder', 'mmspatial', 'EVT', 'mmseg', 'UPerHead',
        'mmseg', 'SegDataPreProcessor',
    ]  # fmt: skip


@pytest.mark.smoke
def test_hub_gives_configs_and_models() -> None:
    name = 'mmspatial::upernet_evt_xs_scenes.py'
    cfg = mmengine.hub.get_config(name)
    assert cfg.model.backbone.type == 'mmspatial.EVT'
    model = mmengine.hub.get_model(name)
    assert list(model.backbone.out_channels) == cfg.model.decode_head.in_channels
    assert model.decode_head.num_classes == cfg.num_classes == 16
