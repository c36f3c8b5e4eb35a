"""Draw image, truth and prediction side by side for images of the validation set."""

from __future__ import annotations

from _start import report_errors, require_openmmlab

from mmspatial.apis.picture_options import parse_show_args


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_show_args(argv)
    with report_errors():
        require_openmmlab('mmengine', 'mmcv')
        from mmspatial.apis.show_results import show_results

        show_results(args)


if __name__ == '__main__':
    main()
