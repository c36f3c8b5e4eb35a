"""What lets the OpenMMLab packages run on today's PyTorch, each fix in one small file.

``install`` only registers import hooks. Each fix happens when a host imports the module which
it concerns; nothing heavy is imported before.

- ``mmcv_ops``: mmcv without compiled ops; without it mmdet cannot be imported.
- ``checkpoint``: MMEngine's checkpoints under PyTorch's safe ``torch.load``; without it resume
  and test fail upstream, and the forks execute whatever a file holds.
- ``package_utils``: upstream MMEngine without ``pkg_resources``; without it no config is found
  by ``package::name.py``.
- ``config_names``: which packages have such configs; without it MMEngine refuses ours.
- ``mask_transfer``: instance masks between processes; without it they are most of what loading
  COCO costs the main process.
- ``distributions``: which OpenMMLab is installed, and clear words when it cannot work.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from mmspatial.compat._imports import stand_in_for, when_imported


def install() -> None:
    """Register the import hooks; calling it again changes nothing."""
    stand_in_for('mmcv._ext', Path(__file__).with_name('mmcv_ops.py'))
    when_imported('mmengine.utils.package_utils', _find_packages)
    when_imported('mmengine.config.utils', _know_packages)
    when_imported('mmengine.runner.checkpoint', _load_safely)
    when_imported('mmdet.structures.mask.structures', _send_bits)


def _find_packages(package_utils: ModuleType) -> None:
    from mmspatial.compat.package_utils import replace_pkg_resources

    replace_pkg_resources(package_utils)


def _know_packages(config_utils: ModuleType) -> None:
    from mmspatial.compat.config_names import know_packages

    know_packages(config_utils)


def _load_safely(runner_checkpoint: ModuleType) -> None:
    from mmspatial.compat.checkpoint import make_safe

    make_safe(runner_checkpoint)


def _send_bits(structures: ModuleType) -> None:
    from mmspatial.compat.mask_transfer import send_bits

    send_bits(structures)
