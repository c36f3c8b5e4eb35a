"""The registry of mmspatial's models, a child of MMEngine's root.

MMEngine imports this module by its name when it meets a type ``'mmspatial.X'``, so such types
resolve from mmseg's, mmdet's and MMEngine's own registries with nothing imported before.
"""

from __future__ import annotations

from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import Registry

MODELS = Registry('model', parent=ROOT_MODELS, scope='mmspatial', locations=['mmspatial.models'])
