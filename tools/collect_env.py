"""Print what a report of a problem has to say of the machine: versions, ops, devices.

Works as well where OpenMMLab is missing, incomplete or mixed: then it says so.
"""

from __future__ import annotations

import argparse

from _start import report_errors


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(argv)
    with report_errors():
        from mmspatial.apis.environment import collect_env

        print(collect_env())


if __name__ == '__main__':
    main()
