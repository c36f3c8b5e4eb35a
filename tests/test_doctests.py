"""The examples in docstrings.

Not pytest's own `--doctest-modules`: it cannot collect `compat/mmcv_ops.py`, whose module answers
for every name.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import mmspatial

ROOT = Path(mmspatial.__file__).parent
FILES = [file for file in sorted(ROOT.rglob('*.py')) if '>>> ' in file.read_text()]


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix('').parts
    return '.'.join(parts).removesuffix('.__init__')


@pytest.mark.parametrize('name', [module_name(file) for file in FILES])
def test_examples_of(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0, 'see the captured output'
