"""A bounded cache for small tensors that depend on sizes only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec('P')
T = TypeVar('T')


def cached_table(build: Callable[P, T]) -> Callable[P, T]:
    """Cache the tensors that ``build`` makes, keyed by its (hashable) arguments.

    A table must serve later calls whatever the first one was, hence

    - it is made outside inference mode: autograd refuses to save inference tensors;
    - while a graph is captured (``torch.compile``, ``torch.export``) nothing is cached:
      a captured tensor belongs to its graph.

    Callers share the tensors and must not write into them.

    Args:
        build: Function of sizes, a device and the like, which returns tensors.

    Returns:
        ``build`` with a cache of its 64 latest results.
    """

    def build_outside_inference(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(False), torch.no_grad():
            return build(*args, **kwargs)

    cached = functools.lru_cache(maxsize=64)(build_outside_inference)

    @functools.wraps(build)
    def table(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            return build(*args, **kwargs)
        return cached(*args, **kwargs)

    return table
