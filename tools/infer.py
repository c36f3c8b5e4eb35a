"""Draw what a segmentor (mmseg) or a detector (mmdet) sees in images."""

from __future__ import annotations

from _start import report_errors, require_openmmlab

from mmspatial.apis.picture_options import parse_infer_args


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_infer_args(argv)
    with report_errors():
        require_openmmlab('mmengine', 'mmcv')
        from mmspatial.apis.infer import infer

        infer(args)


if __name__ == '__main__':
    main()
