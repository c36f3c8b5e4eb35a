"""Count parameters and multiply-adds of a backbone, or of all parts of a config's model.

No data set is needed, and the numbers do not depend on the implementation of an op that runs.
Counted are the multiply-adds of convolutions and matrix products, for one image.
"""

from __future__ import annotations

import argparse

from _start import report_errors, require_openmmlab

from mmspatial.apis.picture_options import finish, positive


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'config',
        metavar='CONFIG|BACKBONE',
        help='a config, its path or the name of one that we ship; or a backbone: rmt_s (a file of '
        'configs/_base_/backbones), RMT:small, timm:vit_small_patch16_224',
    )
    parser.add_argument(
        '--shape',
        type=positive,
        nargs='+',
        default=(),
        metavar=('H', 'W'),
        help='of the image (backbones 224 224, segmentors the crop they train on, detectors '
        '800 1280); one number for a square',
    )
    parser.add_argument('--backbone', metavar='NAME', help='take another backbone in the config')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        metavar='KEY=VALUE',
        help='override settings of the config',
    )
    return finish(parser.parse_args(argv))


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_args(argv)
    with report_errors():
        require_openmmlab('mmengine')
        from mmspatial.apis.get_flops import get_flops

        get_flops(args)


if __name__ == '__main__':
    main()
