"""Let MMEngine find configs by ``package::name.py``: ours, and the forks' segmentation configs.

Without this file ``mmspatial::name.py`` is refused: MMEngine keeps a table of the packages which
it knows, and wants configs to lie in folders, which ours do not. The table also calls mmseg's
distribution ``mmsegmentation`` in the OneDL forks: ``mmseg::name.py`` fails there, and
``mmengine.hub`` even installs upstream's package unasked, so that both sets are there.
"""

from __future__ import annotations

from types import ModuleType

from mmspatial.compat._imports import replace_function
from mmspatial.compat.distributions import installed_set


def know_packages(config_utils: ModuleType) -> None:
    """Complete MMEngine's table of packages, and let our configs be named without a folder.

    Args:
        config_utils: The module ``mmengine.config.utils``.
    """
    config_utils.MODULE2PACKAGE.setdefault('mmspatial', 'mmspatial')
    if installed_set() == 'onedl':
        config_utils.MODULE2PACKAGE['mmseg'] = 'onedl-mmsegmentation'
    split = config_utils._get_package_and_cfg_path

    def split_flat(path: str) -> tuple[str, str]:
        package, separator, name = path.partition('::')
        return (package, name) if package == 'mmspatial' and separator else split(path)

    replace_function(config_utils, '_get_package_and_cfg_path', split_flat)
