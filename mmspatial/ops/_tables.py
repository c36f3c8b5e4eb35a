"""A bounded cache for tensors that depend on sizes only."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec('P')
T = TypeVar('T')

# Of all tables that one function keeps, and of a single one: lest they fill a GPU.
_MAX_TABLES = 64
_MAX_BYTES = 2**28
_MAX_BYTES_EACH = 2**25


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
        ``build`` with a cache of its latest results: at most 64 of at most 32 MiB, 256 MiB in all.
    """
    tables: OrderedDict[Any, tuple[T, int]] = OrderedDict()
    lock = threading.Lock()

    @functools.wraps(build)
    def table(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            return build(*args, **kwargs)
        key = (args, tuple(kwargs.items()))
        with lock:
            if key in tables:
                tables.move_to_end(key)
                return tables[key][0]
        with torch.inference_mode(False), torch.no_grad():
            result = build(*args, **kwargs)
        size = _size(result)
        if size > _MAX_BYTES_EACH:
            return result
        with lock:
            tables[key] = result, size
            while (
                len(tables) > _MAX_TABLES or sum(size for _, size in tables.values()) > _MAX_BYTES
            ):
                tables.popitem(last=False)
        return result

    return table


def _size(result: Any) -> int:
    """Return the bytes of a tensor or a tuple of them."""
    tensors = result if isinstance(result, tuple) else (result,)
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
