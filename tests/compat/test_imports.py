"""The import hooks: they act at the right moment, and leave everything else as it was."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import mmspatial
from mmspatial.compat import _imports, install
from mmspatial.compat._imports import replace_function, stand_in_for, when_imported


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from, whose modules and hooks are gone afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_imports._after_import, 'callbacks', {})
    monkeypatch.setattr(_imports._stand_in, 'files', {})
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(file: Path, code: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)
    importlib.invalidate_caches()


def run(code: str, *paths: Path) -> str:
    """Run code in a fresh interpreter, with some folders first on its path."""
    code = f'import sys; sys.path[:0] = {[str(path) for path in paths]!r}\n{code}'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.smoke
def test_the_package_imports_nothing_heavy() -> None:
    code = """
import mmspatial
hosts = ('torch', 'torchvision', 'timm', 'numpy', 'mmengine', 'mmcv', 'mmseg', 'mmdet', 'cv2')
print([name for name in hosts if name in sys.modules])
"""
    assert run(code, Path(mmspatial.__file__).parents[1]) == '[]'


@pytest.mark.smoke
def test_callback_follows_the_import_at_once_and_after_a_reload(folder: Path) -> None:
    write(folder / 'late.py', 'value = 1\n')
    seen: list[ModuleType] = []

    def change(module: ModuleType) -> None:
        seen.append(module)
        module.value += 1

    when_imported('late', change)
    when_imported('late', change)
    assert importlib.util.find_spec('late') is not None
    assert not seen, 'looking for a module must not execute it'
    late = importlib.import_module('late')
    assert seen == [late]
    assert late.value == 2
    write(folder / 'late.py', 'value = 10\nanother = 1\n')
    assert importlib.reload(late).value == 11
    assert seen == [late, late]


def test_callback_for_a_module_that_is_there_runs_now(folder: Path) -> None:
    write(folder / 'early.py', '')
    early = importlib.import_module('early')
    seen: list[ModuleType] = []
    when_imported('early', seen.append)
    assert seen == [early]


def test_the_imported_module_is_an_ordinary_one(folder: Path) -> None:
    write(folder / 'plain' / '__init__.py', '')
    write(folder / 'plain' / 'part.py', 'own = __loader__\nclass Thing:\n    pass\n')
    for name in ('plain', 'plain.part'):
        when_imported(name, lambda module: None)
    part = importlib.import_module('plain.part')
    for loader in (part.own, part.__loader__, part.__spec__.loader):
        assert type(loader) is importlib.machinery.SourceFileLoader
    assert 'class Thing' in inspect.getsource(part)
    assert type(pickle.loads(pickle.dumps(part.Thing()))) is part.Thing
    assert importlib.util.find_spec('plain.part') is part.__spec__
    package = sys.modules['plain']
    assert [info.name for info in pkgutil.iter_modules(package.__path__)] == ['part']


def test_a_loader_that_waits_still_answers_questions(folder: Path) -> None:
    write(folder / 'asked.py', 'value = 1\n')
    when_imported('asked', lambda module: None)
    loader = importlib.util.find_spec('asked').loader
    assert loader.get_filename('asked') == str(folder / 'asked.py')
    assert not loader.is_package('asked')
    assert copy.copy(loader).get_filename('asked') == loader.get_filename('asked')


def test_failing_missing_and_namespace_modules_stay_as_they_are(folder: Path) -> None:
    seen: list[ModuleType] = []
    for name in ('failing', 'missing', 'spread', 'spread.part'):
        when_imported(name, seen.append)
    write(folder / 'failing.py', 'raise ValueError("own words")\n')
    with pytest.raises(ValueError, match='own words'):
        importlib.import_module('failing')
    assert importlib.util.find_spec('missing') is None
    with pytest.raises(ModuleNotFoundError, match="'missing'"):
        importlib.import_module('missing')
    write(folder / 'spread' / 'part.py', '')
    assert list(importlib.import_module('spread').__path__) == [str(folder / 'spread')]
    assert not seen
    part = importlib.import_module('spread.part')
    assert seen == [part]


@pytest.mark.smoke
@pytest.mark.parametrize('real', [True, False])
def test_the_stand_in_serves_only_where_the_real_module_is_missing(
    folder: Path, real: bool
) -> None:
    write(folder / 'host' / '__init__.py', '')
    write(folder / 'ours.py', "kind = 'stand-in'\n")
    if real:
        write(folder / 'host' / '_ext.py', "kind = 'real'\n")
    stand_in_for('host._ext', folder / 'ours.py')
    ext = importlib.import_module('host._ext')
    assert ext.kind == ('real' if real else 'stand-in')
    assert ext.__spec__.name == ext.__name__ == 'host._ext'
    assert importlib.reload(ext) is ext
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module('host._other')


def test_a_real_mmcv_extension_wins(tmp_path: Path) -> None:
    write(tmp_path / 'mmcv' / '__init__.py', '')
    write(tmp_path / 'mmcv' / '_ext.py', "print('the real one')\n")
    root = Path(mmspatial.__file__).parents[1]
    code = "import mmspatial, mmcv._ext; print('torch' in sys.modules)"
    assert run(code, tmp_path, root).splitlines() == ['the real one', 'False']


def test_a_replaced_function_is_replaced_wherever_it_was_imported(folder: Path) -> None:
    write(folder / 'origin.py', 'def f():\n    return 1\n')
    write(folder / 'user.py', 'from origin import f\nfrom origin import f as kept\n')
    write(folder / 'other.py', 'def f():\n    return 2\n')
    origin, user, other = map(importlib.import_module, ('origin', 'user', 'other'))
    replace_function(origin, 'f', lambda: 3)
    assert (origin.f(), user.f(), user.kept(), other.f()) == (3, 3, 1, 2)


@pytest.mark.smoke
def test_install_again_changes_nothing() -> None:
    before = list(sys.meta_path)
    callbacks = {name: list(each) for name, each in _imports._after_import.callbacks.items()}
    install()
    assert sys.meta_path == before
    assert _imports._after_import.callbacks == callbacks
    assert before.count(_imports._after_import) == before.count(_imports._stand_in) == 1
