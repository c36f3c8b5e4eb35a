"""Distributed runs: MMEngine's launchers on GPUs, gloo on a machine without any."""

from __future__ import annotations

import os
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device

from .errors import UserError


def set_up_launch(cfg: Config, launcher: str) -> None:
    """Prepare a config for the way its processes were started.

    On GPUs MMEngine's runner does everything. Without any, its launcher would ask for CUDA,
    so the process group is made here, and the model's wrapper and batch norms are those that
    work on CPUs.

    Args:
        cfg: Config to change in place.
        launcher: ``none``, ``pytorch``, ``slurm`` or ``mpi``.

    Raises:
        UserError: If the environment does not fit the launcher.
    """
    cfg.launcher = launcher
    if launcher == 'none':
        return
    if launcher == 'pytorch' and 'RANK' not in os.environ:
        raise UserError('--launcher pytorch is for processes of torchrun: use tools/dist_train.sh')
    device = get_device()
    if device == 'cuda':
        _check_gpus()
    if device != 'cpu':
        return
    if launcher != 'pytorch':
        raise UserError(f'--launcher {launcher} needs a GPU; on CPUs use tools/dist_train.sh')
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group('gloo')
    cfg.sync_bn = None
    cfg.model = _without_sync_bn(cfg.model)
    cfg.merge_from_dict({'env_cfg.dist_cfg.backend': 'gloo'})
    cfg.model_wrapper_cfg = dict(
        type='MMDistributedDataParallel',
        device_ids=None,
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    )


def leave_together() -> None:
    """End a group of CPU processes that has done its work; without one, do nothing.

    The first process still saves when the others are done. One that ends before, with the
    group's threads alive, can abort, and torchrun then stops the others.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_backend() == 'gloo':
        dist.barrier()
        dist.destroy_process_group()


def is_main() -> bool:
    """Say whether this process is the one that speaks for all."""
    return int(os.environ.get('RANK', '0')) == 0


def _check_gpus() -> None:
    import torch

    wanted, count = int(os.environ.get('LOCAL_WORLD_SIZE', '1')), torch.cuda.device_count()
    if wanted > count:
        raise UserError(f'{wanted} processes were started on a machine with {count} GPU(s)')


def _without_sync_bn(node: Any) -> Any:
    """Replace SyncBN, which needs CUDA, by BN wherever a model's config names it."""
    if isinstance(node, dict):
        for key, value in node.items():
            is_sync = key == 'type' and value in ('SyncBN', 'MMSyncBN')
            node[key] = 'BN' if is_sync else _without_sync_bn(value)
    elif isinstance(node, (list, tuple)):
        return type(node)(_without_sync_bn(item) for item in node)
    return node
