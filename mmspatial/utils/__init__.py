"""The entry that `mmengine.hub` looks up in a package whose configs it reads."""

from __future__ import annotations

import importlib


def register_all_modules(init_default_scope: bool = True) -> None:
    """Register every module of mmspatial.

    Args:
        init_default_scope: Without effect: configs here live in their host's scope.
    """
    del init_default_scope
    importlib.import_module('mmspatial.models')
