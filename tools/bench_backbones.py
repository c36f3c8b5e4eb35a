"""Time whole backbones, of ours and of others, and measure their memory."""

from __future__ import annotations

from pathlib import Path

from _start import report_errors, require_openmmlab

from mmspatial.apis.benchmarks.options import parse_backbones_args


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_backbones_args(argv, Path(__file__).resolve().parent / 'results')
    with report_errors():
        require_openmmlab('mmengine')
        from mmspatial.apis.benchmarks.bench_backbones import bench_backbones

        bench_backbones(args)


if __name__ == '__main__':
    main()
