"""Measure how fast configs load their training data, with nothing where the model would be."""

from __future__ import annotations

from pathlib import Path

from _start import report_errors, require_openmmlab

from mmspatial.apis.benchmarks.options import parse_data_args


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    args = parse_data_args(argv, Path(__file__).resolve().parent / 'results')
    with report_errors():
        require_openmmlab('mmengine', 'mmcv')
        from mmspatial.apis.benchmarks.bench_data import bench_data

        bench_data(args)


if __name__ == '__main__':
    main()
