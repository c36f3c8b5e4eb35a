"""How tools end when the user's input is at fault: one message, no traceback."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


class UserError(RuntimeError):
    """Input that the user can mend; the message says what is wrong and what to do."""


@contextlib.contextmanager
def report_errors() -> Iterator[None]:
    """Turn a `UserError` into one message on stderr and exit status 2."""
    try:
        yield
    except UserError as error:
        print(f'error: {error}', file=sys.stderr)
        raise SystemExit(2) from None
