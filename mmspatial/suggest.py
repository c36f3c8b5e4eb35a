"""Words for names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str], cutoff: float = 0.65) -> str:
    """Say ``, did you mean 'x'?`` where known names are close, else nothing.

    Args:
        name: What does not exist.
        known: What exists.
        cutoff: Least similarity, from 0 to 1; case does not count.
    """
    names = {n.lower(): n for n in known}
    close = difflib.get_close_matches(name.lower(), names, n=2, cutoff=cutoff)
    return f', did you mean {" or ".join(repr(names[n]) for n in close)}?' if close else ''
