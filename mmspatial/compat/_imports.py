"""Step into other packages' imports: act right after one module, stand in for another.

Both work through finders on ``sys.meta_path``, so that nothing is imported before the hosts
import it themselves, and ``import mmspatial`` stays cheap.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class _CallingLoader(Loader):
    """Load as the wrapped loader does, then run callbacks; gone once the module is there."""

    def __init__(self, loader: Any, callbacks: Sequence[Callback]) -> None:
        self.loader = loader
        self.callbacks = callbacks

    def __getattr__(self, name: str) -> Any:
        # Special names are looked up on half-made objects (copy, pickle): never forward them.
        if name.startswith('__'):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        for callback in self.callbacks:
            callback(module)


class _AfterImport(MetaPathFinder):
    """Find what the other finders find, with callbacks tied to it."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callback]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.callbacks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, 'find_spec'):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                # A namespace package has no loader, and no code to wait for.
                if spec.loader is not None:
                    spec.loader = _CallingLoader(spec.loader, self.callbacks[fullname])
                return spec
        return None


class _StandIn(MetaPathFinder):
    """Find a module in a file of ours when nobody else has found it."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.files:
            return None
        return importlib.util.spec_from_file_location(fullname, self.files[fullname])


_after_import = _AfterImport()
_stand_in = _StandIn()


def when_imported(name: str, callback: Callback) -> None:
    """Call ``callback(module)`` right after a module was imported, now if it already is.

    A reload runs the callback again, since it renews what the callback changed. Registering
    the same callback twice has no effect. Namespace packages are never reported.

    Args:
        name: Full name of the module; it need not be installed.
        callback: What to do with the module.
    """
    callbacks = _after_import.callbacks.setdefault(name, [])
    if callback in callbacks:
        return
    callbacks.append(callback)
    if _after_import not in sys.meta_path:
        sys.meta_path.insert(0, _after_import)
    if name in sys.modules:
        callback(sys.modules[name])


def stand_in_for(name: str, file: Path) -> None:
    """Serve a module from a file, only where every other finder fails.

    Args:
        name: Full name of the module, in a package that exists.
        file: Python file with the module's code, executed at the first import.
    """
    _stand_in.files[name] = file
    if _stand_in not in sys.meta_path:
        sys.meta_path.append(_stand_in)


def replace_function(module: ModuleType, name: str, new: Callable[..., Any]) -> None:
    """Put a function in place of a module's, also where others have imported it by name before.

    Args:
        module: Where the old function is defined.
        name: Its name.
        new: The function to use instead.
    """
    old = getattr(module, name)
    for user in list(sys.modules.values()):
        if isinstance(user, ModuleType) and vars(user).get(name) is old:
            setattr(user, name, new)
