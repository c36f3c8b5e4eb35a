"""Evaluate a checkpoint of a segmentor (mmseg) or a detector (mmdet)."""

from __future__ import annotations

from _start import report_errors, require_openmmlab

from mmspatial.apis.options import parse_test_args


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_test_args(argv)
    with report_errors():
        require_openmmlab('mmengine', 'mmcv')
        from mmspatial.apis.launch import leave_together
        from mmspatial.apis.test import test

        test(args)
        leave_together()


if __name__ == '__main__':
    main()
