"""The command lines of the benchmarks, without a heavy import."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .parts import TARGET_RUN, Part

OPS = (
    'decay_manhattan', 'decay_euclidean', 'rows_columns', 'groups', 'gated', 'gaussian',
    'cross_covariance', 'resample_up', 'resample_down', 'alias_free_gelu',
)  # fmt: skip
CONTENDERS = (
    'published', 'reference', 'chunked', 'table', 'triton', 'auto', 'sdpa_bias', 'flex', 'floor',
)  # fmt: skip
DTYPES = {'fp32': 'float32', 'bf16': 'bfloat16', 'fp16': 'float16'}
# Options of `bench_backbones` that are attributes of a `Part`.
_OF_PART = ('sizes', 'batch', 'passes', 'dtypes', 'forms', 'profile')


def parse_ops_args(argv: list[str] | None, out: Path) -> argparse.Namespace:
    """Read the command line of `tools/bench_ops.py`.

    Args:
        argv: Words after the program's name; None for those of this process.
        out: Folder for the results if the command line names none.

    Returns:
        The options; ``sizes`` is None for those of the device.
    """
    parser = argparse.ArgumentParser(
        description='Check the ops against the float64 reference, then time all implementations '
        'of each and what else computes the same.'
    )
    parser.add_argument(
        '--ops',
        nargs='+',
        choices=OPS,
        default=OPS,
        metavar='OP',
        help=f'which: {", ".join(OPS)} (all)',
    )
    parser.add_argument(
        '--only',
        nargs='+',
        choices=CONTENDERS,
        default=CONTENDERS,
        metavar='NAME',
        help=f'contenders: {", ".join(CONTENDERS)} (all)',
    )
    parser.add_argument(
        '--sizes',
        nargs='+',
        type=_count,
        metavar='N',
        help='sides of the square token grid (14 28 56; 32 56 64 128 on a GPU)',
    )
    parser.add_argument(
        '--heads', type=_count, metavar='M', help='of the full maps (2; 8 on a GPU)'
    )
    parser.add_argument(
        '--width', type=_count, default=64, metavar='D', help='head width of the full maps (64)'
    )
    parser.add_argument('--dtype', choices=DTYPES, default='fp32', help='(fp32)')
    _add_common(parser, out, 'ops_DEVICE_DTYPE')
    args = parser.parse_args(argv)
    if args.quick:
        args.sizes, args.rounds = args.sizes or [4, 6], 2
    return _finish(args)


def parse_backbones_args(argv: list[str] | None, out: Path) -> argparse.Namespace:
    """Read the command line of `tools/bench_backbones.py`.

    Args:
        argv: Words after the program's name; None for those of this process.
        out: Folder for the results if the command line names none.

    Returns:
        The options, with the `Part` objects of the run as ``parts``.
    """
    parser = argparse.ArgumentParser(
        description='Time whole backbones, interleaved in one run, and measure their memory. '
        'Without names: all that our targets are about, in an hour or so, and whether they are '
        'reached.'
    )
    parser.add_argument(
        'backbones',
        nargs='*',
        metavar='BACKBONE',
        help='rmt_s (a file in configs/_base_/backbones), LocAtViT:base (class and '
        'arch), timm:swin_small_patch4_window7_224, or a config of mmseg or ours',
    )
    names = [part.name for part in TARGET_RUN]
    parser.add_argument(
        '--parts',
        nargs='+',
        choices=names,
        metavar='PART',
        help=f'of the run without names: {", ".join(names)} (all)',
    )
    # Those that are not given are left to the defaults of `Part`.
    group = parser.add_argument_group('of named backbones', argument_default=argparse.SUPPRESS)
    group.add_argument(
        '--sizes',
        nargs='+',
        type=_count,
        metavar='PIXELS',
        help='sides of the square images (224)',
    )
    group.add_argument('--batch', type=_count, metavar='B', help='images at once (1)')
    group.add_argument(
        '--passes',
        nargs='+',
        choices=('forward', 'train'),
        metavar='PASS',
        help='forward (evaluation), train (forward, backward, AdamW) (both)',
    )
    group.add_argument(
        '--dtype',
        dest='dtypes',
        nargs='+',
        choices=DTYPES,
        metavar='DTYPE',
        help=f'of autocast: {", ".join(DTYPES)} (fp32, which is without)',
    )
    for option, form, text in (
        ('--published', 'published', 'the formulations of RMT, LocAtViT and AliasFreeViT as '
         'published, with the same weights'),
        ('--fuse', 'fused', 'all with their batch norms and the like folded (forward only)'),
        ('--compile', 'compiled', 'all through torch.compile, ours folded before (forward)'),
    ):  # fmt: skip
        group.add_argument(
            option, dest='forms', action='append_const', const=form, help=f'also {text}'
        )
    group.add_argument(
        '--profile', action='store_true', help='then also profile one pass of each by operator'
    )
    _add_common(parser, out, 'backbones_DEVICE_DTYPE; backbones_DEVICE without backbones')
    args = parser.parse_args(argv)
    args.parts = _find_parts(parser, args)
    if args.quick:
        args.rounds = 2
    return _finish(args)


def _find_parts(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Part]:
    """Return the parts of the run: a single one, or those of the target run."""
    given = {name: getattr(args, name) for name in _OF_PART if hasattr(args, name)}
    if args.backbones:
        if args.parts:
            parser.error('--parts is for the run without names of backbones')
        return [Part(args.backbones, **given)]
    if given:
        parser.error(
            'name the backbones: the run without names has sizes, passes and the like of its own, '
            'of which --parts takes some'
        )
    parts = [part for part in TARGET_RUN if not args.parts or part.name in args.parts]
    # Compilation takes minutes.
    return [p.shrunk() for p in parts if 'compiled' not in p.forms] if args.quick else parts


def parse_data_args(argv: list[str] | None, out: Path) -> argparse.Namespace:
    """Read the command line of `tools/bench_data.py`.

    Args:
        argv: Words after the program's name; None for those of this process.
        out: Folder for the results if the command line names none.

    Returns:
        The options, with what `load_config` looks at.
    """
    parser = argparse.ArgumentParser(
        description='Measure how fast training data are loaded, without a model: each step of the '
        'pipeline, then the loader as fast as it goes and beside a step that takes some time.'
    )
    parser.add_argument(
        'configs',
        nargs='*',
        default=('upernet_evt_b_ade20k', 'maskrcnn_evt_b_coco_1x'),
        metavar='CONFIG',
        help='config files, or names of those that we ship (UperNet and Mask R-CNN 1x of EVT-B)',
    )
    parser.add_argument(
        '--data-root',
        metavar='DIR',
        help='folder of the data set (scenes of its image size, drawn for the purpose)',
    )
    parser.add_argument(
        '--workers', nargs='+', type=int, default=(1, 4), metavar='N', help='of the loader (1 4)'
    )
    parser.add_argument(
        '--images', type=_count, default=200, metavar='N', help='that are loaded each time (200)'
    )
    parser.add_argument(
        '--step', type=float, default=200.0, metavar='MS', help='time of a training step (200)'
    )
    parser.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE', help='override settings'
    )
    _add_running(parser, out, 'data_cpu', 3)
    args = parser.parse_args(argv)
    args.scenes, args.threads = 48, 1
    if args.quick:
        args.scenes, args.images, args.step, args.rounds = 4, 8, 5.0, 1
    args.name = args.name or 'data_cpu'
    args.backbone = args.work_dir = None
    return _finish(args)


def _add_common(parser: argparse.ArgumentParser, out: Path, name: str) -> None:
    parser.add_argument('--device', help='cpu, cuda or cuda:N (a GPU if there is one)')
    parser.add_argument('--threads', type=_count, default=1, metavar='N', help='on a CPU (1)')
    _add_running(parser, out, name, 7)


def _add_running(parser: argparse.ArgumentParser, out: Path, name: str, rounds: int) -> None:
    parser.add_argument(
        '--rounds',
        type=_count,
        default=rounds,
        metavar='N',
        help=f'times that everything is measured, in turn ({rounds})',
    )
    parser.add_argument(
        '--quick',
        action='store_true',
        help='see soon whether all of it runs; its numbers say little',
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=out,
        metavar='DIR',
        help='folder for the results (results/ beside the tool)',
    )
    parser.add_argument('--name', metavar='NAME', help=f'of the files in it ({name})')


def _finish(args: argparse.Namespace) -> argparse.Namespace:
    # Read when torch is imported, which is later than this.
    for variable in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
        os.environ[variable] = str(args.threads)
    return args


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'{text} is not at least 1')
    return value
