"""Configs by ``package::name.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import mmengine.hub
import mmengine.utils
import pytest
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE

from mmspatial.compat import config_names

CONFIGS = {
    'mmspatial::upernet_evt_s_ade20k.py': 'EncoderDecoder',
    'mmseg::upernet/upernet_r18_4xb4-80k_ade20k-512x512.py': 'EncoderDecoder',
    'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py': 'RetinaNet',
}


@pytest.mark.smoke
def test_mmengine_knows_packages_that_are_installed() -> None:
    assert MODULE2PACKAGE['mmspatial'] == 'mmspatial'
    # What it does not find, `mmengine.hub` installs.
    for name in ('mmspatial', 'mmseg', 'mmdet'):
        assert mmengine.utils.is_installed(MODULE2PACKAGE[name])


@pytest.mark.smoke
@pytest.mark.parametrize('name', CONFIGS)
def test_a_base_is_found_by_the_name_of_its_package(name: str, tmp_path: Path) -> None:
    leaf = tmp_path / 'leaf.py'
    leaf.write_text(f'_base_ = [{name!r}]\n')
    assert Config.fromfile(leaf).model.type == CONFIGS[name]
    assert mmengine.hub.get_config(name).model.type == CONFIGS[name]


def fake_utils(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Make a module like ``mmengine.config.utils``."""
    utils = ModuleType('fake_utils')
    utils.MODULE2PACKAGE = {'mmseg': 'mmsegmentation', 'mmspatial': 'their own choice'}
    utils._get_package_and_cfg_path = lambda name: ('host', name)
    monkeypatch.setitem(sys.modules, 'fake_utils', utils)
    return utils


@pytest.mark.parametrize(
    ('installed', 'package'), [('onedl', 'onedl-mmsegmentation'), ('openmmlab', 'mmsegmentation')]
)
def test_the_package_of_mmseg_is_the_installed_one(
    installed: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils = fake_utils(monkeypatch)
    monkeypatch.setattr(config_names, 'installed_set', lambda: installed)
    config_names.know_packages(utils)
    assert utils.MODULE2PACKAGE['mmseg'] == package
    assert utils.MODULE2PACKAGE['mmspatial'] == 'their own choice'


def test_names_of_others_are_left_to_mmengine(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = fake_utils(monkeypatch)
    config_names.know_packages(utils)
    split = utils._get_package_and_cfg_path
    assert split('mmspatial::a.py') == ('mmspatial', 'a.py')
    for name in ('mmdet::a.py', 'mmdet::folder/a.py', 'mmspatial.py'):
        assert split(name) == ('host', name)


@pytest.mark.smoke
def test_names_work_when_mmengine_was_imported_first(tmp_path: Path) -> None:
    leaf = tmp_path / 'leaf.py'
    leaf.write_text("_base_ = ['mmspatial::upernet_evt_s_ade20k.py']\n")
    root = Path(config_names.__file__).parents[2]
    code = f"""
import sys
sys.path.insert(0, {str(root)!r})
from mmengine.config import Config
import mmengine.hub
import mmspatial
print(Config.fromfile({str(leaf)!r}).model.type)
print(mmengine.hub.get_config('mmspatial::upernet_evt_s_ade20k.py').model.type)
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ['EncoderDecoder', 'EncoderDecoder']
