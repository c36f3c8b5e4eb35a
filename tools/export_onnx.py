"""Export a segmentor, or any model's backbone, for ONNX Runtime or as a PyTorch program.

Batch, height and width stay open. What has been written is compared with the model on images of two
sizes, one of them odd. The segmentor puts out logits at the size of the image.
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
    parser.add_argument('config', help='config file, or the name of one that we ship')
    parser.add_argument(
        'checkpoint', help="checkpoint of the whole model; 'none' for fresh weights, as a trial"
    )
    parser.add_argument(
        'out', nargs='?', metavar='OUT', help='file.onnx or file.pt2 (CONFIG.onnx here)'
    )
    parser.add_argument(
        '--part',
        choices=('model', 'backbone'),
        default='model',
        help='the whole segmentor (default), or only the backbone, of a detector too',
    )
    parser.add_argument(
        '--format',
        choices=('onnx', 'torch'),
        help='onnx, or torch for a program of torch.export (what OUT ends with; onnx)',
    )
    parser.add_argument(
        '--fixed-size',
        type=positive,
        nargs=2,
        metavar=('H', 'W'),
        help='take single images of this size only',
    )
    parser.add_argument(
        '--backbone', metavar='NAME', help='the backbone, where --backbone chose it in training'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        metavar='KEY=VALUE',
        help='override settings of the config',
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='also load checkpoints that can execute code: only if you trust whoever made them',
    )
    return finish(parser.parse_args(argv))


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_args(argv)
    with report_errors():
        require_openmmlab('mmengine', 'mmcv')
        from mmspatial.apis.export import export

        export(args)


if __name__ == '__main__':
    main()
