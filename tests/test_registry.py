"""Types and configs by name, each in a fresh interpreter: what was imported before matters."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import mmengine.hub
import pytest

ROOT = Path(__file__).parents[1]
ARCH = '{"embed_dims": (8,) * 4, "depths": (1,) * 4, "num_heads": (1,) * 4}'


def last_line(code: str) -> list[str]:
    """Run code; return the words of the last line that it prints (hosts print, too)."""
    done = subprocess.run(
        [sys.executable, '-c', f'import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1].split()


@pytest.mark.smoke
@pytest.mark.parametrize('host', ['mmengine', 'mmseg', 'mmdet'])
def test_type_resolves_with_nothing_imported_before(host: str) -> None:
    code = f"""
from {host}.registry import MODELS
assert 'mmspatial' not in sys.modules
try:
    model = MODELS.build(dict(type='mmspatial.EVT', arch={ARCH}))
    print(type(model).__module__, *model.out_channels)
except ModuleNotFoundError as error:
    print('lacks', error.name)
"""
    words = last_line(code)
    if host != 'mmengine' and words == ['lacks', 'mmcv._ext']:
        # A config's `custom_imports` comes first: see the next test.
        pytest.skip(f"{host}'s registry imports its models, which lack mmcv's compiled ops")
    assert words == ['mmspatial.models.backbones.evt', *'8888']


@pytest.mark.smoke
@pytest.mark.parametrize('host', ['mmseg', 'mmdet'])
def test_type_resolves_in_a_config_of_ones_own(host: str, tmp_path: Path) -> None:
    """With the README's line, also where the host cannot be imported by itself."""
    config = tmp_path / 'own.py'
    config.write_text(
        "custom_imports = dict(imports=['mmspatial'], allow_failed_imports=False)\n"
        f"backbone = dict(type='mmspatial.EVT', arch={ARCH})\n"
    )
    code = f"""
from mmengine.config import Config
from {host}.registry import MODELS
model = MODELS.build(Config.fromfile({str(config)!r}).backbone)
print(type(model).__module__, *model.out_channels)
"""
    assert last_line(code) == ['mmspatial.models.backbones.evt', *'8888']


@pytest.mark.smoke
def test_a_config_that_inherits_by_name_builds(tmp_path: Path) -> None:
    """Also where MMEngine came first; the base's types are looked up in mmspatial's scope."""
    leaf = tmp_path / 'leaf.py'
    leaf.write_text(
        "_base_ = ['mmspatial::upernet_evt_xs_scenes.py']\n"
        'model = dict(decode_head=dict(channels=8))\n'
    )
    code = f"""
from mmengine.config import Config
import mmspatial
from mmengine.registry import MODELS, init_default_scope
cfg = Config.fromfile({str(leaf)!r})
init_default_scope(cfg.default_scope)
model = MODELS.build(cfg.model)
parts = (model, model.backbone, model.decode_head)
print(*(type(part).__module__.partition('.')[0] + '.' + type(part).__name__ for part in parts),
      model.decode_head.channels, *model.decode_head.in_channels)
"""
    built = 'mmseg.EncoderDecoder mmspatial.EVT mmseg.UPerHead'
    assert ' '.join(last_line(code)) == f'{built} 8 32 64 128 256'


@pytest.mark.smoke
def test_hub_gives_configs_and_models() -> None:
    importlib.import_module('mmspatial')
    name = 'mmspatial::upernet_evt_xs_scenes.py'
    cfg = mmengine.hub.get_config(name)
    assert cfg.model.backbone.type == 'mmspatial.EVT'
    model = mmengine.hub.get_model(name)
    assert list(model.backbone.out_channels) == cfg.model.decode_head.in_channels
    assert model.decode_head.num_classes == cfg.num_classes == 16
