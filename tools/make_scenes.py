"""Write a folder of drawn street scenes in the layout of a known data set."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import _start  # noqa: F401 (before what an environment without the package lacks)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('root', type=Path, help='new or empty folder, or an older set of scenes')
    # Named here, since the writers are imported late.
    layouts = ('ade20k', 'coco', 'cocostuff', 'pascal59')
    parser.add_argument('--layout', choices=layouts, default='ade20k')
    parser.add_argument('--num-train', type=int, default=300, metavar='N')
    parser.add_argument('--num-val', type=int, default=60, metavar='N')
    parser.add_argument(
        '--size', type=int, nargs=2, default=(192, 256), metavar=('H', 'W'), help='in pixels'
    )
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--fixed-size', action='store_true', help='give all pictures one size')
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Write the set unless it is there already; return the exit code."""
    args = parse_args(argv)
    # Imported late, so that --help answers at once.
    try:
        from mmspatial.datasets import WRITERS
    except ImportError as error:
        print(f'error: {error} (the scenes need numpy, opencv and mmspatial)', file=sys.stderr)
        return 2
    try:
        written = WRITERS[args.layout](
            args.root, args.num_train, args.num_val, tuple(args.size), args.seed,
            not args.fixed_size,
        )  # fmt: skip
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    count = f'{args.num_train} training and {args.num_val} validation scenes'
    print(f'{"wrote" if written else "found"} {count} in {args.root} ({args.layout} layout)')
    return 0


if __name__ == '__main__':
    sys.exit(main())
