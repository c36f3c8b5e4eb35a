"""`tools/collect_env.py`: it says what is there, and goes on where something is missing."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType

import pytest
import torch
from tiny import run_tool

from mmspatial import __version__
from mmspatial.apis.environment import collect_env
from mmspatial.compat import distributions


def facts(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, fact = line[:12].strip(), line[13:]
        if name:
            found[name] = fact
        else:
            found[next(reversed(found))] += f'\n{fact}'
    return found


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let only these distributions of OpenMMLab be installed, as far as metadata says."""

    def version(name: str) -> str:
        if name.replace('-', '_') not in versions:
            raise PackageNotFoundError(name)
        return versions[name.replace('-', '_')]

    monkeypatch.setattr(distributions, 'version', version)


def break_imports(monkeypatch: pytest.MonkeyPatch, errors: dict[str, Exception]) -> None:
    real = importlib.import_module

    def import_module(name: str) -> ModuleType:
        if name in errors:
            raise errors[name]
        return real(name)

    monkeypatch.setattr(importlib, 'import_module', import_module)


def test_what_is_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import mmcv
    import mmdet
    import mmengine
    import mmseg

    monkeypatch.setenv('MMSPATIAL_IMPL', 'chunked')
    run_tool('collect_env')
    found = facts(capsys.readouterr().out)
    for module in (mmengine, mmcv, mmseg, mmdet):
        assert found[module.__name__] == module.__version__
    assert found['mmspatial'] == __version__
    assert found['torch'].startswith(torch.__version__)
    assert found['system'].startswith(f'Python {sys.version.split()[0]}')
    name, sets = distributions.installed_set(), distributions.installed_distributions()
    assert found['OpenMMLab'].startswith({'onedl': 'OneDL forks', 'openmmlab': 'upstream'}[name])
    assert all(f'{key} {number}' in found['OpenMMLab'] for key, number in sets[name].items())
    served = sys.modules['mmcv._ext'].get_compiler_version().startswith('none')
    assert found['mmcv ops'].startswith('not compiled; mmspatial serves' if served else 'compiled')
    assert found['CPU'].endswith(f'{torch.get_num_threads()} used by PyTorch')
    if not torch.cuda.is_available():
        assert found['GPU'] == 'none that PyTorch can use'
        words = ('not installed', 'not usable: ', 'interpreter only (TRITON_INTERPRET)')
        assert any(word in found['triton'] for word in words)
    assert found['impl'] == 'MMSPATIAL_IMPL=chunked'


def test_openmmlab_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    names = ('mmengine', 'mmcv', 'mmseg', 'mmdet')
    break_imports(monkeypatch, {name: ModuleNotFoundError(name=name) for name in names})
    found = facts(collect_env())
    assert {found[name] for name in names} == {'not installed'}
    assert found['mmcv ops'] == 'none without mmcv'
    assert found['OpenMMLab'].startswith('not installed\nOpenMMLab is not installed')
    assert "pip install 'mmspatial[onedl]'" in found['OpenMMLab']


def test_openmmlab_is_mixed_and_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, onedl_mmengine='0.10.12', mmengine='0.10.7', mmcv='2.1.0')
    break_imports(monkeypatch, {
        'mmcv': ImportError('libGL.so.1: cannot open\nand more'),
        'cv2': ImportError('libGL.so.1: cannot open'),
        'mmseg': AssertionError('MMCV==2.3.6 is used but incompatible'),
        'mmdet': ModuleNotFoundError("No module named 'pycocotools'", name='pycocotools'),
        'triton': RuntimeError('no driver'),
    })  # fmt: skip
    found = facts(collect_env())
    assert found['OpenMMLab'].startswith(
        'OneDL forks and upstream, mixed: onedl-mmengine 0.10.12, mmengine 0.10.7, mmcv 2.1.0\n'
    )
    assert 'pip uninstall -y onedl-mmengine mmengine mmcv' in found['OpenMMLab']
    assert found['mmcv'] == 'cannot be imported: ImportError: libGL.so.1: cannot open'
    assert found['mmcv ops'] == 'none without mmcv'
    assert found['mmseg'].endswith('AssertionError: MMCV==2.3.6 is used but incompatible')
    assert found['mmdet'].endswith("ModuleNotFoundError: No module named 'pycocotools'")
    assert found['OpenCV'].startswith('cannot be imported: ImportError: libGL')
    assert found['triton'] == 'cannot be imported: RuntimeError: no driver'


def test_compiled_ops_that_do_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    break_imports(monkeypatch, {'mmcv._ext': ImportError('undefined symbol: _ZN3c10')})
    found = facts(collect_env())
    assert found['mmcv ops'].startswith('compiled, but cannot be loaded: ImportError: undefined')
