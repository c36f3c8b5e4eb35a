"""The command lines of `tools/train.py` and `tools/test.py`, without a heavy import."""

from __future__ import annotations

import argparse
import os

# Of `tools/infer.py`, too.
FUSE_HELP = 'fold batch norms and the like into the weights, for speed'


def parse_train_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line of `tools/train.py`.

    Args:
        argv: Words after the program's name; None for those of this process.

    Returns:
        The options; ``resume`` is None, 'auto' or a path.
    """
    parser = argparse.ArgumentParser(description='Train a segmentor or a detector.')
    _add_common(parser)
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='PATH',
        help='continue from a checkpoint, without PATH from the last one in the work dir',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision (needs a GPU)')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by batch size / auto_scale_lr.base_batch_size',
    )
    parser.add_argument(
        '--backbone-weights',
        metavar='FILE',
        help='pretrained weights of the backbone (.pth, .pt or .safetensors)',
    )
    parser.add_argument('--seed', type=int, help='seed of everything that is random')
    parser.add_argument(
        '--deterministic', action='store_true', help='choose deterministic cuDNN kernels'
    )
    return _finish(parser.parse_args(argv))


def parse_test_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line of `tools/test.py`.

    Args:
        argv: Words after the program's name; None for those of this process.

    Returns:
        The options.
    """
    parser = argparse.ArgumentParser(description='Evaluate a segmentor or a detector.')
    _add_common(parser)
    parser.add_argument('checkpoint', help='checkpoint of the whole model')
    parser.add_argument(
        '--out',
        metavar='F',
        help='write results: F.json the metrics, F.pkl the predictions of a detector; a name '
        'without suffix is a folder for the label maps (PNG) of a segmentor',
    )
    parser.add_argument(
        '--show-dir', metavar='DIR', help='paint the predictions into pictures under DIR'
    )
    parser.add_argument('--tta', action='store_true', help='test-time augmentation')
    parser.add_argument('--fuse', action='store_true', help=FUSE_HELP)
    return _finish(parser.parse_args(argv))


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('config', help='config file, or the name of one that we ship')
    parser.add_argument(
        '--work-dir', metavar='DIR', help='where logs and checkpoints go (work_dirs/CONFIG)'
    )
    parser.add_argument(
        '--backbone', metavar='NAME', help='take another backbone, for example rmt_s'
    )
    parser.add_argument('--data-root', metavar='DIR', help='folder of the data set')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        metavar='KEY=VALUE',
        help='override settings, for example train_cfg.max_iters=40 or key="[(a,b),(c,d)]"',
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='also load checkpoints that can execute code: only if you trust whoever made them',
    )
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='how the processes of a distributed run were started',
    )
    parser.add_argument('--local-rank', '--local_rank', type=int, default=0, help=argparse.SUPPRESS)


def _finish(args: argparse.Namespace) -> argparse.Namespace:
    # Old launchers pass the rank as an option, MMEngine reads it from the environment.
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args
