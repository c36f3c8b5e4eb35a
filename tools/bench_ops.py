"""Check the ops against their definition, then time every implementation and its rivals."""

from __future__ import annotations

import sys
from pathlib import Path

from _start import report_errors

from mmspatial.apis.benchmarks.options import parse_ops_args


def main(argv: list[str] | None = None) -> int:
    """Run the tool; return the exit code, 1 if an implementation computes something else."""
    args = parse_ops_args(argv, Path(__file__).resolve().parent / 'results')
    with report_errors():
        from mmspatial.apis.benchmarks.bench_ops import bench_ops

        return bench_ops(args)


if __name__ == '__main__':
    sys.exit(main())
