"""Let upstream MMEngine find installed packages without ``pkg_resources``.

Setuptools no longer brings ``pkg_resources`` along (gone in 82). Upstream's
``mmengine.utils.package_utils`` imports it in each of its functions, so without this file every
config name of the form ``package::name.py`` and ``mmengine.hub`` fail. The OneDL forks use
``importlib.metadata`` themselves.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from mmspatial.compat._imports import replace_function


def replace_pkg_resources(package_utils: ModuleType) -> None:
    """Put this file's functions in place of those which cannot run.

    Args:
        package_utils: The module ``mmengine.utils.package_utils``.
    """
    wants_it = 'pkg_resources' in package_utils.is_installed.__code__.co_names
    if wants_it and find_spec('pkg_resources') is None:
        for function in (is_installed, get_installed_path, package2module):
            replace_function(package_utils, function.__name__, function)


def is_installed(package: str) -> bool:
    """Say whether a distribution, or a package that can be imported, has this name."""
    try:
        distribution(package)
    except PackageNotFoundError:
        spec = find_spec(package)
        return spec is not None and spec.origin is not None
    return True


def get_installed_path(package: str) -> str:
    """Return the folder of a package, by its import name or that of its distribution.

    Raises:
        PackageNotFoundError: If neither exists.
        RuntimeError: If it is a namespace package, which has no one folder.
    """
    spec = find_spec(package) or find_spec(package2module(package))
    if spec is None:
        raise PackageNotFoundError(package)
    if spec.origin is None:
        raise RuntimeError(f"'{package}' is a namespace package: it has no folder of its own.")
    return str(Path(spec.origin).parent)


def package2module(package: str) -> str:
    """Return the name under which a distribution is imported.

    Raises:
        PackageNotFoundError: If the distribution does not exist.
        ValueError: If it does not tell.
    """
    names = (distribution(package).read_text('top_level.txt') or '').split()
    if not names:
        raise ValueError(f"The distribution '{package}' does not tell what it is imported as.")
    return names[0]
