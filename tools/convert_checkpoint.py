"""Write weights of a release in mmspatial's layout, or back in the release's.

IN is a release's file, a timm ViT or Swin, a checkpoint of a whole segmentor or detector, or a
file that this tool wrote. By which names its weights go is recognised. OUT is written as its suffix
says: .pth, .pt or .safetensors. Nothing that IN holds is executed.
"""

from __future__ import annotations

import argparse

from _start import report_errors, require_openmmlab


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('source', metavar='IN', help='file to read')
    parser.add_argument('target', metavar='OUT', help='file to write; it must not exist')
    parser.add_argument(
        '--to',
        default='mmspatial',
        metavar='NAME',
        help='layout: mmspatial (default), rmt, timm-vit, timm-swin or alias-free',
    )
    parser.add_argument(
        '--backbone', metavar='NAME', help='check first that the weights fit it, such as evt'
    )
    parser.add_argument('--arch', metavar='NAME', help="of --backbone; its class's own by default")
    parser.add_argument(
        '--trust-checkpoint', action='store_true', help='read IN even if that may execute code'
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_args(argv)
    with report_errors():
        require_openmmlab('mmengine')
        from mmspatial.apis.convert import convert

        print(convert(args))


if __name__ == '__main__':
    main()
