from __future__ import annotations

from pathlib import Path

import pytest

from mmspatial.datasets import write_ade20k, write_coco


@pytest.fixture(scope='session')
def ade20k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('ade20k')
    write_ade20k(root, 6, 2, (64, 80), 0, False)
    return root


@pytest.fixture(scope='session')
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('coco')
    write_coco(root, 4, 2, (96, 128), 0, False)
    return root
