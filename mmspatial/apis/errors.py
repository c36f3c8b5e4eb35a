"""How tools end when the user's input is at fault: one message, no traceback."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator


class UserError(RuntimeError):
    """Input that the user can mend; the message says what is wrong and what to do."""


def require_openmmlab(*packages: str) -> None:
    """Make sure that OpenMMLab packages can be imported.

    Args:
        *packages: Import names, such as 'mmengine' and 'mmseg'.

    Raises:
        UserError: If one is missing, or two sets of distributions are mixed.
    """
    # Here, since this module belongs to every tool's start.
    from mmspatial.compat.distributions import check_openmmlab

    try:
        check_openmmlab(need=packages)
    except RuntimeError as error:
        raise UserError(str(error)) from error


def warn(text: str) -> None:
    """Say something on stderr that does not stop a tool, once for all processes of a run."""
    if os.environ.get('RANK', '0') == '0':
        print(f'warning: {text}', file=sys.stderr)


@contextlib.contextmanager
def report_errors() -> Iterator[None]:
    """Turn errors that the user can mend into one message on stderr and exit status 2.

    These are `UserError`, and `CheckpointError` from wherever a checkpoint is read.
    """
    try:
        yield
    except RuntimeError as error:
        # Only where it can have been raised: importing the module costs seconds.
        checkpoint = sys.modules.get('mmspatial.compat.checkpoint')
        mendable = (UserError, checkpoint.CheckpointError) if checkpoint else UserError
        if not isinstance(error, mendable):
            raise
        if os.environ.get('RANK', '0') != '0':
            # The first process most likely says the same, and ends this one then.
            time.sleep(5)
        print(f'error: {error}', file=sys.stderr)
        raise SystemExit(2) from None
