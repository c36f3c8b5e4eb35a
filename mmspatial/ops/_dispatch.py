"""Which implementation of an op runs, and why another one cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

IMPLS = ('reference', 'chunked', 'triton')
ENV = 'MMSPATIAL_IMPL'


def choose(op: str, impl: str, available: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Pick the implementation of an op.

    The environment variable ``MMSPATIAL_IMPL`` replaces ``'auto'``; an explicit argument wins
    over it.

    Args:
        op: Name of the op, for messages.
        impl: ``'auto'`` or the name of an implementation.
        available: The implementations which the op has, the preferred one first.

    Returns:
        The function to call.

    Raises:
        ValueError: If ``impl`` is no implementation's name.
        NotImplementedError: If the op does not have the implementation asked for.
    """
    source = 'impl'
    if impl == 'auto':
        impl, source = os.environ.get(ENV, 'auto'), ENV
    if impl == 'auto':
        return next(iter(available.values()))
    if impl not in IMPLS:
        raise ValueError(
            f"unknown {source}={impl!r}: expected 'auto', {', '.join(map(repr, IMPLS))}"
        )
    if impl not in available:
        raise NotImplementedError(
            f'{op} has no such implementation: {source}={impl!r}; it has {", ".join(available)}'
        )
    return available[impl]
