"""The command lines of `tools/infer.py` and `tools/show_results.py`, without a heavy import."""

from __future__ import annotations

import argparse

from .options import FUSE_HELP


def parse_infer_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line of `tools/infer.py`.

    Args:
        argv: Words after the program's name; None for those of this process.

    Returns:
        The options.
    """
    parser = argparse.ArgumentParser(description='Draw what a trained model sees in images.')
    add_model(parser)
    parser.add_argument(
        'images', nargs='+', metavar='IMAGE', help="files, folders, or patterns such as 'a/*.jpg'"
    )
    parser.add_argument('--fuse', action='store_true', help=FUSE_HELP)
    _add_drawing(parser, 'pictures')
    return finish(parser.parse_args(argv))


def parse_show_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line of `tools/show_results.py`.

    Args:
        argv: Words after the program's name; None for those of this process.

    Returns:
        The options.
    """
    parser = argparse.ArgumentParser(
        description='Draw image | truth | prediction for images of the validation set.'
    )
    add_model(parser)
    _add_drawing(parser, 'results')
    parser.add_argument('--data-root', metavar='DIR', help='folder of the data set')
    parser.add_argument(
        '--num', type=positive, default=8, metavar='N', help='how many images, evenly spaced (8)'
    )
    return finish(parser.parse_args(argv))


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add what names a trained model and where it runs."""
    parser.add_argument('config', help='config file, or the name of one that we ship')
    parser.add_argument('checkpoint', help='checkpoint of the whole model')
    parser.add_argument(
        '--backbone', metavar='NAME', help='the backbone, where --backbone chose it in training'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        metavar='KEY=VALUE',
        help='override settings, for example model.test_cfg.mode=whole',
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='also load checkpoints that can execute code: only if you trust whoever made them',
    )
    parser.add_argument('--device', help='cpu, cuda or cuda:N (a GPU if there is one)')


def _add_drawing(parser: argparse.ArgumentParser, folder: str) -> None:
    parser.add_argument(
        '--out-dir', default=folder, metavar='DIR', help=f'where pictures go ({folder})'
    )
    parser.add_argument(
        '--opacity', type=_share, default=0.55, metavar='O', help='of the colours, 0 to 1 (0.55)'
    )
    parser.add_argument(
        '--score-thr',
        type=_share,
        default=0.3,
        metavar='S',
        help='least score of a detected thing that is drawn, 0 to 1 (0.3)',
    )


def finish(args: argparse.Namespace) -> argparse.Namespace:
    """Add what `load_config` looks at for every tool, and return the options."""
    args.work_dir = None
    args.data_root = getattr(args, 'data_root', None)
    return args


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f'{text} is not between 0 and 1')
    return value


def positive(text: str) -> int:
    """Read an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'{text} is not at least 1')
    return value
