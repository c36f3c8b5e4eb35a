"""The command lines of the tools that look into trained models, without a heavy import."""

from __future__ import annotations

import argparse

from .picture_options import add_model, finish, positive

_SHIFTS = """
kinds of shifts:
  cyclic      by whole pixels; what leaves on one side comes back on the other
  crop        by whole pixels; a window moves over the image
  fractional  cyclic by parts of a pixel, by ideal (periodic, band-limited) interpolation
  bilinear    a window by parts of a pixel, by bilinear interpolation

The size of a shift is the larger of its parts down and right. Shifts of a size go in eight
directions, or with --every to all places at that distance. Labels are read where the moved
pixels are, at the resolution at which the model sees the image, from logits interpolated
bilinearly (periodically for the cyclic kinds). In windows, only pixels count that no shift moves
out of them. The truth is brought to that resolution by nearest neighbours.

columns, for each size:
  consistency, accuracy, mIoU   the mean over the shifts of that size: of the share of pixels that
                                keep the label of shift 0, and of scores against the truth
  worst consistency             share of pixels that keep it under every shift up to that size
  worst accuracy                share of pixels that are right under every shift up to that size
  worst mIoU                    where a pixel that is not has the first wrong label it gets
"""
KINDS = ('cyclic', 'crop', 'fractional', 'bilinear')


def parse_attention_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line of `tools/visualize_attention.py`.

    Args:
        argv: Words after the program's name; None for those of this process.

    Returns:
        The options.
    """
    parser = argparse.ArgumentParser(
        description='Draw the spatial prior of a block, and its attention with and without it, '
        'for points of an image: side by side on a page, and each as a file. '
        "With 'none' for the checkpoint, of a model with fresh weights."
    )
    add_model(parser)
    parser.add_argument('image', metavar='IMAGE', help='an image file')
    parser.add_argument(
        '--point',
        type=int,
        nargs=2,
        action='append',
        metavar=('X', 'Y'),
        help='the pixel that looks, from the upper left corner; more than once for more rows (the '
        'middle of the image)',
    )
    parser.add_argument(
        '--block',
        metavar='I',
        help='STAGE.BLOCK of a pyramid, BLOCK of a plain ViT, from 0 (the last one of the stage '
        'with the most blocks)',
    )
    parser.add_argument(
        '--head', type=int, nargs='+', default=[0], metavar='H', help='heads, from 0 (0)'
    )
    parser.add_argument(
        '--out-dir', default='attention', metavar='D', help='where pictures go (attention)'
    )
    return finish(parser.parse_args(argv))


def parse_shift_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line of `tools/shift_consistency.py`.

    Args:
        argv: Words after the program's name; None for those of this process.

    Returns:
        The options.
    """
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure how a segmentor's labels change when its image moves.",
        epilog=_SHIFTS,
    )
    add_model(parser)
    parser.add_argument('--data-root', metavar='DIR', help='folder of the data set')
    parser.add_argument(
        '--kinds', nargs='+', choices=KINDS, default=KINDS, metavar='K', help=', '.join(KINDS)
    )
    parser.add_argument(
        '--max-shift', type=positive, default=4, metavar='S', help='largest shift in pixels (4)'
    )
    parser.add_argument(
        '--parts',
        type=positive,
        default=2,
        metavar='N',
        help='fractional and bilinear shifts are by multiples of 1/N pixel (2)',
    )
    parser.add_argument(
        '--every',
        action='store_true',
        help='try every shift of a size, not only those in eight directions',
    )
    parser.add_argument(
        '--ideal',
        action='store_true',
        help='read logits after cyclic and fractional shifts by ideal interpolation',
    )
    parser.add_argument(
        '--divisor',
        type=positive,
        default=32,
        metavar='D',
        help='cut images at the bottom and right to sides divisible by D (32)',
    )
    parser.add_argument('--limit', type=positive, metavar='N', help='N images, evenly spaced (all)')
    parser.add_argument(
        '--out-dir', default='shifts', metavar='DIR', help='where table and plot go (shifts)'
    )
    return finish(parser.parse_args(argv))
