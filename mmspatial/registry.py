"""The registries of mmspatial, children of MMEngine's roots.

MMEngine imports this module by its name when it meets a type ``'mmspatial.X'``, so such types
resolve from mmseg's, mmdet's and MMEngine's own registries with nothing imported before.
"""

from __future__ import annotations

from mmengine import registry as root
from mmengine.registry import Registry

MODELS = Registry('model', parent=root.MODELS, scope='mmspatial', locations=['mmspatial.models'])

# Empty ones. A config that inherits from `mmspatial::name.py` gets its loops, hooks, … looked up
# in this scope; without registries to pass through, MMEngine warns about each of them.
for _parent in (
    root.DATA_SAMPLERS,
    root.HOOKS,
    root.LOG_PROCESSORS,
    root.LOOPS,
    root.OPTIM_WRAPPERS,
    root.PARAM_SCHEDULERS,
):
    Registry(_parent.name, parent=_parent, scope='mmspatial', locations=['mmspatial.registry'])
