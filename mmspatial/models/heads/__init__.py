"""Heads of our own; everything else is mmseg's and mmdet's.

The probes are subclasses of mmseg's heads. They are registered as functions that import them when
a config asks, so that everything else works without mmseg, and detectors start without it.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from mmspatial.compat.distributions import check_openmmlab
from mmspatial.registry import MODELS


@MODELS.register_module(name='LinearHead')
def build_linear_head(**options: Any) -> nn.Module:
    """Build `mmspatial.models.heads.probe.LinearHead`."""
    return _build_probe('LinearHead', options)


@MODELS.register_module(name='MLPHead')
def build_mlp_head(**options: Any) -> nn.Module:
    """Build `mmspatial.models.heads.probe.MLPHead`."""
    return _build_probe('MLPHead', options)


def _build_probe(name: str, options: dict[str, Any]) -> nn.Module:
    """Build a head of `mmspatial.models.heads.probe`.

    Raises:
        RuntimeError: If mmseg is not installed; the message says what to type.
    """
    try:
        probe = importlib.import_module('mmspatial.models.heads.probe')
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] in ('mmcv', 'mmseg'):
            check_openmmlab(need=['mmcv', 'mmseg'])
        raise
    return getattr(probe, name)(**options)
