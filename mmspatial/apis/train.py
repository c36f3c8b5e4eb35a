"""What `tools/train.py` does."""

from __future__ import annotations

import argparse
import os
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from mmspatial.compat.checkpoint import TRUST_VARIABLE, is_url, load_file

from .checkpoints import check_matches, find_last, read_checkpoint
from .configs import load_config
from .data import check_data
from .errors import UserError
from .folders import make_folder
from .launch import is_main, set_up_launch
from .resume import IterationNoise, SkipTrainedBatches
from .runner import build_runner, check_optimizer


def train(args: argparse.Namespace) -> Runner:
    """Train as a command line says.

    Args:
        args: Options as `options.parse_train_args` returns them.

    Returns:
        The runner, at the end of training.

    Raises:
        UserError: For anything that the user can mend, before training starts.
        CheckpointError: If a checkpoint cannot be read.
    """
    if args.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = '1'
    cfg = load_config(args)
    _apply_options(cfg, args)
    check_optimizer(cfg)
    make_folder(cfg.work_dir, '--work-dir')
    check_data(cfg, ('train', 'val'))
    weights = _choose_start(cfg, args.resume)
    set_up_launch(cfg, args.launcher)

    runner = build_runner(cfg)
    if weights is not None:
        check_matches(runner.model, weights, cfg.load_from, to_start=not cfg.resume)
    runner.register_hook(IterationNoise())
    runner.register_hook(SkipTrainedBatches())
    runner.train()
    return runner


def _apply_options(cfg: Config, args: argparse.Namespace) -> None:
    if args.amp:
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        if not (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
            raise UserError('--auto-scale-lr needs `auto_scale_lr.base_batch_size` in the config')
        cfg.auto_scale_lr.enable = True
    if args.backbone_weights:
        load_file(args.backbone_weights)
        cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=args.backbone_weights)
    cfg.randomness = {'seed': None, **cfg.get('randomness', {})}
    if args.seed is not None:
        cfg.randomness.seed = args.seed
    if args.deterministic:
        cfg.randomness.deterministic = True


def _choose_start(cfg: Config, resume: str | None) -> dict[str, Any] | None:
    """Set `resume` and `load_from`; return the weights that training starts from."""
    if resume == 'auto' or (resume is None and cfg.get('resume') and not cfg.get('load_from')):
        found = find_last(cfg.work_dir)
        cfg.resume = found is not None
        if found is None:
            if is_main():
                print(f'--resume: no checkpoint in {cfg.work_dir} yet, starting from the beginning')
            return None
        cfg.load_from, checkpoint = found
    else:
        if resume is not None:
            cfg.resume, cfg.load_from = True, resume
        if not cfg.get('load_from') or ('://' in cfg.load_from and not is_url(cfg.load_from)):
            return None
        checkpoint = read_checkpoint(cfg.load_from)
    if cfg.get('resume'):
        meta = checkpoint.get('meta', {})
        if not {'iter', 'epoch'} <= meta.keys() or 'optimizer' not in checkpoint:
            raise UserError(
                f"checkpoint '{cfg.load_from}' has weights but no training state to resume; to "
                f'start from its weights, use --cfg-options load_from={cfg.load_from}'
            )
        # The order of the data depends on the seed, and is fixed before MMEngine restores it.
        if cfg.randomness.seed is None:
            cfg.randomness.seed = meta.get('seed')
    return checkpoint['state_dict']
