"""Measure how a segmentor's labels change when its image moves."""

from __future__ import annotations

from _start import report_errors, require_openmmlab

from mmspatial.apis.analysis_options import parse_shift_args


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_shift_args(argv)
    with report_errors():
        require_openmmlab('mmengine', 'mmcv', 'mmseg')
        from mmspatial.apis.shift_consistency import shift_consistency

        shift_consistency(args)


if __name__ == '__main__':
    main()
