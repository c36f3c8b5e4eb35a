"""Print a backbone's table of variants, or the model zoo's tables of all configs.

Of a backbone, parameters and multiply-adds, without classifier, on one image; the tables are in its
page, `configs/<name>.md`. What is counted is said in `mmspatial/apis/costs.py`.

Of the zoo, what `get_flops.py` counts of each config's model, and the result that `model-index.yml`
knows of the paper that the backbone is from; the tables are in `configs/README.md`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import report_errors, require_openmmlab


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('what', metavar='BACKBONE|zoo', help='such as evt, or all configs')
    what = parser.parse_args(argv).what
    with report_errors():
        require_openmmlab('mmengine')
        from mmspatial.apis.model_table import model_table

        model_table(what, Path(__file__).resolve().parents[1])


if __name__ == '__main__':
    main()
