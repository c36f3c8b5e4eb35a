"""Vision backbones with spatial priors for OpenMMLab's segmentors and detectors.

Importing the package is cheap and imports neither torch nor OpenMMLab; it only arranges what
must happen when they are imported later (see `mmspatial.compat`).
"""

from __future__ import annotations

import importlib
from typing import Any

from . import compat

__version__ = '0.1.0'
__all__ = ['build_backbone', 'fuse_for_inference', 'list_backbones', 'load_weights']

compat.install()

_HOME = {
    'build_backbone': 'mmspatial.models.builder',
    'fuse_for_inference': 'mmspatial.models.fuse',
    'list_backbones': 'mmspatial.models.builder',
    'load_weights': 'mmspatial.checkpoints',
}


def __getattr__(name: str) -> Any:
    """Import the public functions when they are first used."""
    if name not in _HOME:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    try:
        return getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name == 'mmengine':
            from .compat.distributions import check_openmmlab

            check_openmmlab(need=['mmengine'])
        raise


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
