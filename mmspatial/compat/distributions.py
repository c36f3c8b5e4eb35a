"""Say which set of OpenMMLab distributions is installed, and in clear words why it cannot work.

Two sets carry the same import names, so they overwrite each other's files: the maintained
OneDL forks and upstream's last releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

# Import name -> names of the distributions that provide it, the usual one first.
_DISTRIBUTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    'onedl': {
        'mmengine': ('onedl-mmengine',),
        'mmcv': ('onedl-mmcv',),
        'mmseg': ('onedl-mmsegmentation',),
        'mmdet': ('onedl-mmdetection',),
    },
    'openmmlab': {
        'mmengine': ('mmengine', 'mmengine-lite'),
        'mmcv': ('mmcv-lite', 'mmcv', 'mmcv-full'),
        'mmseg': ('mmsegmentation',),
        'mmdet': ('mmdet',),
    },
}


def installed_distributions() -> dict[str, dict[str, str]]:
    """List what is installed, from package metadata alone.

    Returns:
        For each set ('onedl', 'openmmlab') its distributions and their versions.
    """
    found: dict[str, dict[str, str]] = {}
    for name, packages in _DISTRIBUTIONS.items():
        found[name] = {}
        for distribution in (each for names in packages.values() for each in names):
            try:
                found[name][distribution] = version(distribution)
            except PackageNotFoundError:
                continue
    return found


def installed_set() -> Literal['onedl', 'openmmlab', 'both', 'none']:
    """Say which set is installed; 'both' as soon as one distribution of each is."""
    found = installed_distributions()
    if found['onedl'] and found['openmmlab']:
        return 'both'
    if found['onedl']:
        return 'onedl'
    return 'openmmlab' if found['openmmlab'] else 'none'


def check_openmmlab(*, need: Sequence[str]) -> None:
    """Make sure that the packages which a task imports are there and can work.

    Args:
        need: Import names among 'mmengine', 'mmcv', 'mmseg' and 'mmdet'.

    Raises:
        RuntimeError: If OpenMMLab is missing, incomplete or there twice, or OpenCV, which mmcv
            needs, cannot be imported. The message says what to type.
    """
    name, found = installed_set(), installed_distributions()
    if name == 'none':
        raise RuntimeError(
            f'OpenMMLab is not installed ({", ".join(need)} needed). Install it with: '
            "pip install 'mmspatial[onedl]'"
        )
    if name == 'both':
        lists = [' '.join(f'{k}=={v}' for k, v in each.items()) for each in found.values()]
        raise RuntimeError(
            'Two sets of OpenMMLab distributions are installed, which overwrite each '
            f"other's files: {lists[0]} and {lists[1]}. Remove both and install one: "
            f'pip uninstall -y {" ".join([*found["onedl"], *found["openmmlab"]])} && '
            "pip install 'mmspatial[onedl]'"
        )
    missing = [
        f'{package} (distribution {_DISTRIBUTIONS[name][package][0]})'
        for package in need
        if not set(_DISTRIBUTIONS[name][package]) & set(found[name])
    ]
    if missing:
        raise RuntimeError(
            f'OpenMMLab is incomplete: {", ".join(missing)} is missing. Install it with: '
            f"pip install 'mmspatial[{name}]'"
        )
    if 'mmcv' in need:
        _check_opencv()


def _check_opencv() -> None:
    """Import OpenCV; the variant that draws windows fails on machines without a display."""
    try:
        # An interrupted or half removed installation leaves an empty namespace package.
        from cv2 import imread  # noqa: F401
    except ImportError as error:
        raise RuntimeError(
            f'OpenCV cannot be imported ({error}). Install the variant that needs no display: '
            'pip uninstall -y opencv-python opencv-python-headless && '
            'pip install opencv-python-headless'
        ) from error
