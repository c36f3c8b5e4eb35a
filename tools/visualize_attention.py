"""Draw a block's spatial prior, and its attention with and without it, over an image."""

from __future__ import annotations

from _start import report_errors, require_openmmlab

from mmspatial.apis.analysis_options import parse_attention_args


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_attention_args(argv)
    with report_errors():
        require_openmmlab('mmengine', 'mmcv')
        from mmspatial.apis.visualize_attention import visualize_attention

        visualize_attention(args)


if __name__ == '__main__':
    main()
