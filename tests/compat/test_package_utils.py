"""Finding packages without ``pkg_resources``."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import mmengine.utils
import pytest
import torch

import mmspatial
from mmspatial.compat import package_utils
from mmspatial.compat.distributions import installed_set

MMSEG = {'onedl': 'onedl-mmsegmentation', 'openmmlab': 'mmsegmentation'}[installed_set()]


@pytest.mark.smoke
def test_mmengine_finds_packages_whatever_setuptools_brings() -> None:
    assert mmengine.utils.is_installed('mmseg')
    assert mmengine.utils.is_installed(MMSEG)
    assert not mmengine.utils.is_installed('no-such-package')
    assert mmengine.utils.get_installed_path('mmspatial') == str(Path(mmspatial.__file__).parent)


def test_names_of_packages_and_of_distributions_are_understood() -> None:
    assert package_utils.is_installed('torch')
    assert package_utils.is_installed(MMSEG)
    assert package_utils.is_installed('mmspatial')
    assert not package_utils.is_installed('no_such_package')
    assert package_utils.package2module(MMSEG) == 'mmseg'
    assert package_utils.get_installed_path('torch') == str(Path(torch.__file__).parent)
    assert Path(package_utils.get_installed_path(MMSEG)).name == 'mmseg'
    with pytest.raises(PackageNotFoundError):
        package_utils.get_installed_path('no_such_package')


def test_a_namespace_package_has_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'spread_out').mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not package_utils.is_installed('spread_out')
    with pytest.raises(RuntimeError, match='namespace package'):
        package_utils.get_installed_path('spread_out')


@pytest.mark.parametrize('wants_it', [True, False])
@pytest.mark.parametrize('present', [True, False])
def test_only_what_cannot_run_is_replaced(
    wants_it: bool, present: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def old_way(package: str) -> bool:
        import pkg_resources

        return bool(pkg_resources.get_distribution(package))

    def new_way(package: str) -> bool:
        return bool(package)

    host = ModuleType('host')
    host.is_installed = old_way if wants_it else new_way
    host.get_installed_path = host.package2module = str
    monkeypatch.setitem(sys.modules, 'host', host)
    monkeypatch.setattr(package_utils, 'find_spec', lambda name: object() if present else None)
    package_utils.replace_pkg_resources(host)
    for name in ('is_installed', 'get_installed_path', 'package2module'):
        replaced = getattr(host, name) is getattr(package_utils, name)
        assert replaced == (wants_it and not present)
