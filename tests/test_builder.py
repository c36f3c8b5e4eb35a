from __future__ import annotations

import subprocess
import sys

import pytest
from mmengine.registry import DefaultScope

from mmspatial import build_backbone, list_backbones


@pytest.mark.smoke
@pytest.mark.parametrize('scope', ['mmseg', 'mmdet', 'mmengine'])
def test_backbones_build_whatever_runner_ran_before(scope: str) -> None:
    # A runner leaves its scope behind, in which MMEngine looks types up first.
    with DefaultScope.overwrite_default_scope(scope):
        assert build_backbone('mmspatial.RMT', arch='tiny').out_channels == (64, 128, 256, 512)


def test_unknown_backbone_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no backbone 'RTM', did you mean 'RMT'\? Known: .*EVT"):
        build_backbone('RTM')
    assert set(list_backbones()) >= {'EVT', 'RMT', 'SDT', 'LocAtViT', 'AliasFreeViT'}


def test_without_openmmlab_one_message_says_what_to_install() -> None:
    # `None` in sys.modules makes an import fail as if the package were missing.
    code = (
        'import sys; sys.modules["mmengine"] = None\n'
        'import importlib.metadata as m\n'
        'def version(name): raise m.PackageNotFoundError(name)\n'
        'm.version = version\n'
        'import mmspatial; mmspatial.build_backbone("RMT")'
    )
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.returncode != 0
    assert 'mmspatial[onedl]' in run.stderr.strip().splitlines()[-1]
