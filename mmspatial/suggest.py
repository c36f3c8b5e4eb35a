"""Words for names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def near(name: str, known: Sequence[str], cutoff: float = 0.5) -> str:
    """Return ', did you mean …?' for the closest known names, or nothing.

    Args:
        name: What does not exist.
        known: What exists.
        cutoff: Least similarity, from 0 to 1.
    """
    close = difflib.get_close_matches(name, known, n=2, cutoff=cutoff)
    return f', did you mean {" or ".join(map(repr, close))}?' if close else ''
