"""What `tools/test.py` does."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmspatial.compat.checkpoint import TRUST_VARIABLE

from .checkpoints import check_matches, read_checkpoint
from .configs import load_config
from .data import check_data
from .errors import UserError
from .folders import make_folder, make_place
from .fuse import FuseHook
from .launch import is_main, set_up_launch
from .runner import build_runner


def test(args: argparse.Namespace) -> dict[str, float]:
    """Evaluate as a command line says, and print the metrics.

    Args:
        args: Options as `options.parse_test_args` returns them.

    Returns:
        The metrics by name.

    Raises:
        UserError: For anything that the user can mend, before the evaluation starts.
        CheckpointError: If the checkpoint cannot be read.
    """
    if args.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = '1'
    cfg = load_config(args)
    cfg.load_from, cfg.resume = args.checkpoint, False
    weights = read_checkpoint(args.checkpoint)['state_dict']
    check_data(cfg, ('test',))
    _apply_options(cfg, args)
    _make_places(cfg, args)
    set_up_launch(cfg, args.launcher)

    runner = build_runner(cfg)
    check_matches(runner.model, weights, args.checkpoint)
    if args.out and args.out.endswith('.pkl'):
        from mmdet.evaluation import DumpDetResults

        runner.test_evaluator.metrics.append(DumpDetResults(out_file_path=args.out))
    if args.fuse:
        runner.register_hook(FuseHook())
    metrics = runner.test()
    if is_main():
        _report(metrics, args.out)
    return metrics


def _apply_options(cfg: Config, args: argparse.Namespace) -> None:
    is_det = cfg.get('default_scope') == 'mmdet'
    suffix = Path(args.out).suffix if args.out else None
    if suffix is not None and (suffix not in ('.json', '.pkl' if is_det else '')):
        raise UserError(
            f"--out '{args.out}': F.json takes the metrics; predictions go to F.pkl for detectors "
            f'and to a folder, named without a suffix, for segmentors'
        )
    if suffix == '':
        cfg.test_evaluator['output_dir'] = args.out
    if args.show_dir:
        _show(cfg, os.path.abspath(args.show_dir), is_det)
    if args.fuse and cfg.get('compile'):
        raise UserError('--fuse comes too late for `compile`: add --cfg-options compile=False')
    if args.tta:
        if 'tta_model' not in cfg or 'tta_pipeline' not in cfg:
            raise UserError(
                '--tta needs `tta_model` and `tta_pipeline` in the config; mmdet can merge boxes '
                'but no masks, so the configs for instance segmentation have none'
            )
        cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
        cfg.tta_model.module = cfg.model
        cfg.model = cfg.tta_model


def _make_places(cfg: Config, args: argparse.Namespace) -> None:
    make_folder(cfg.work_dir, '--work-dir')
    if args.show_dir:
        make_folder(args.show_dir, '--show-dir')
    if args.out:
        (make_place if Path(args.out).suffix else make_folder)(args.out, '--out')


def _show(cfg: Config, folder: str, is_det: bool) -> None:
    hook = (cfg.get('default_hooks') or {}).get('visualization')
    if hook is None:
        raise UserError('--show-dir needs `default_hooks.visualization` in the config')
    hook.draw, hook.interval = True, 1
    if is_det:
        hook.test_out_dir = folder
    else:
        cfg.visualizer.save_dir = folder


def _report(metrics: dict[str, Any], out: str | None) -> None:
    width = max(map(len, metrics), default=0)
    print('\n'.join(f'{name:<{width}}  {float(value):.4f}' for name, value in metrics.items()))
    if out and out.endswith('.json'):
        Path(out).write_text(json.dumps({k: float(v) for k, v in metrics.items()}, indent=2) + '\n')
    if out:
        print(f'written: {out}')
