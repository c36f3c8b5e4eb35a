"""Which OpenMMLab is installed, and the one message when it cannot work."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType

import pytest

from mmspatial.compat import distributions
from mmspatial.compat.distributions import (
    check_openmmlab,
    installed_distributions,
    installed_set,
)

ONEDL = {
    'onedl-mmengine': '0.10.12',
    'onedl-mmcv': '2.3.6',
    'onedl-mmsegmentation': '1.4.2',
    'onedl-mmdetection': '3.5.1',
}
UPSTREAM = {'mmengine': '0.10.7', 'mmcv': '2.1.0', 'mmsegmentation': '1.2.2', 'mmdet': '3.3.0'}
ALL = ('mmengine', 'mmcv', 'mmseg', 'mmdet')


def pretend(monkeypatch: pytest.MonkeyPatch, *sets: dict[str, str]) -> None:
    """Let the metadata say that exactly these distributions are installed."""
    there = {name: version for each in sets for name, version in each.items()}

    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(distributions, 'version', version)


@pytest.mark.smoke
def test_this_environment_has_one_set_that_works() -> None:
    name = installed_set()
    assert name in ('onedl', 'openmmlab')
    found = installed_distributions()
    assert len(found[name]) == 4
    assert not found[{'onedl': 'openmmlab', 'openmmlab': 'onedl'}[name]]
    check_openmmlab(need=ALL)


@pytest.mark.parametrize(
    ('sets', 'name'),
    [((ONEDL,), 'onedl'), ((UPSTREAM,), 'openmmlab'), ((ONEDL, UPSTREAM), 'both'), ((), 'none')],
)
def test_the_set_follows_from_metadata(
    monkeypatch: pytest.MonkeyPatch, sets: tuple[dict[str, str], ...], name: str
) -> None:
    pretend(monkeypatch, *sets)
    assert installed_set() == name
    if name in ('onedl', 'openmmlab'):
        check_openmmlab(need=ALL)


@pytest.mark.parametrize('mmcv', ['mmcv', 'mmcv-lite', 'mmcv-full'])
def test_every_mmcv_of_upstream_counts(monkeypatch: pytest.MonkeyPatch, mmcv: str) -> None:
    pretend(monkeypatch, {'mmengine': '0.10.7', mmcv: '2.1.0'})
    check_openmmlab(need=('mmengine', 'mmcv'))


def refusal(need: tuple[str, ...] = ALL) -> str:
    with pytest.raises(RuntimeError) as caught:
        check_openmmlab(need=need)
    message = str(caught.value)
    assert '\n' not in message
    return message


@pytest.mark.smoke
def test_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    message = refusal(('mmengine', 'mmseg'))
    assert message.startswith('OpenMMLab is not installed (mmengine, mmseg needed)')
    assert "pip install 'mmspatial[onedl]'" in message


@pytest.mark.parametrize(
    ('there', 'extra', 'lacking'),
    [(ONEDL, 'onedl', 'onedl-mmdetection'), (UPSTREAM, 'openmmlab', 'mmdet')],
)
def test_one_package_missing(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, str], extra: str, lacking: str
) -> None:
    pretend(monkeypatch, {name: there[name] for name in there if name != lacking})
    message = refusal()
    assert f'mmdet (distribution {lacking}) is missing' in message
    assert 'mmseg' not in message
    assert f"pip install 'mmspatial[{extra}]'" in message
    check_openmmlab(need=('mmengine', 'mmcv', 'mmseg'))


@pytest.mark.smoke
def test_both_sets_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, ONEDL, {'mmengine': '0.10.7', 'mmcv-lite': '2.1.0'})
    message = refusal()
    assert 'onedl-mmcv==2.3.6' in message
    assert 'mmcv-lite==2.1.0' in message
    assert f'pip uninstall -y {" ".join(ONEDL)} mmengine mmcv-lite && pip install' in message


@pytest.mark.smoke
@pytest.mark.parametrize('failure', ['libGL.so.1: cannot open shared object file', None])
def test_opencv_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, failure: str | None
) -> None:
    cv2 = ModuleType('cv2')
    if failure:

        def fail(name: str) -> None:
            raise ImportError(failure)

        cv2.__getattr__ = fail
    monkeypatch.setitem(sys.modules, 'cv2', cv2)
    message = refusal()
    assert (failure or 'cannot import name') in message
    assert 'pip install opencv-python-headless' in message
    check_openmmlab(need=('mmengine',))
