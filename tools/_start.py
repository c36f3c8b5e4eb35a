"""What every tool begins with; says what to do where the package is not installed."""

from __future__ import annotations

import sys

try:
    from mmspatial.apis import report_errors, require_openmmlab
except ModuleNotFoundError as error:
    if error.name != 'mmspatial':
        raise
    print(
        f'error: mmspatial is not installed for {sys.executable}. Activate the environment that '
        "has it (such as: source .venv/bin/activate), or install it: pip install -e '.[onedl]' "
        'in the folder of the checkout',
        file=sys.stderr,
    )
    raise SystemExit(2) from None

__all__ = ['report_errors', 'require_openmmlab']
