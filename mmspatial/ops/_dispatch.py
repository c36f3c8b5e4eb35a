"""Which implementation of an op runs, and why another one cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from ._softmax import no_autocast

IMPLS = ('reference', 'chunked', 'table', 'triton')
ENV = 'MMSPATIAL_IMPL'


def can_run() -> None:
    """Give no reason against an implementation: it takes whatever the op takes."""


def always() -> bool:
    """Say that an implementation pays wherever it can run."""
    return True


class Option(NamedTuple):
    """An implementation of an op, for the tensors of one call.

    Attributes:
        run: Computes the op.
        why_not: Returns why it cannot run here, or None if it can.
        pays: Says whether ``'auto'`` is to take it rather than one further down the list.
        plain: Whether it is as general as the reference: any dtype, and fit for export.
    """

    run: Callable[[], Tensor]
    why_not: Callable[[], str | None] = can_run
    pays: Callable[[], bool] = always
    plain: bool = False


class Decision(NamedTuple):
    """What `explain` tells of a call.

    Attributes:
        op: The op's name.
        shape: Of q.
        chosen: The implementation that ran.
        passed_over: For those preferred to it, why they did not run.
    """

    op: str
    shape: tuple[int, ...]
    chosen: str
    passed_over: dict[str, str]


_listeners: list[list[Decision]] = []


@contextmanager
def explain() -> Iterator[list[Decision]]:
    """Note which implementation each op takes inside the block, and why not another one.

    Yields:
        A list that grows by a `Decision` for each call of an op.

    Example:
        >>> import torch
        >>> from mmspatial.ops import decay_attention
        >>> q = torch.randn(1, 2, 12, 16, dtype=torch.float64)
        >>> with explain() as decisions:
        ...     _ = decay_attention(q, q, q, torch.tensor([-1.0, -0.1]), (3, 4))
        >>> decisions[0].chosen, decisions[0].passed_over['chunked']
        ('reference', 'double precision is left to the reference')
    """
    decisions: list[Decision] = []
    _listeners.append(decisions)
    try:
        yield decisions
    finally:
        # By identity: lists of the same decisions are equal.
        _listeners[:] = [listener for listener in _listeners if listener is not decisions]


def run(op: str, impl: str, q: Tensor, options: Mapping[str, Option]) -> Tensor:
    """Run the implementation that is asked for, or the best one for the tensors of a call.

    Autocast is off inside: ops choose their dtypes themselves. The environment variable
    ``MMSPATIAL_IMPL`` replaces ``'auto'``; an explicit argument wins over it.

    Args:
        op: Name of the op, for messages.
        impl: ``'auto'`` or the name of an implementation.
        q: Of the call, for its dtype.
        options: The implementations which the op has, the preferred one first, the reference,
            which can always run, last.

    Returns:
        What the implementation returns.

    Raises:
        ValueError: If ``impl`` is no implementation's name.
        NotImplementedError: If the op does not have the implementation asked for, or it cannot
            run with these tensors on this machine; the message says why.
    """
    source = 'impl'
    if impl == 'auto':
        impl, source = os.environ.get(ENV, 'auto'), ENV
    chosen, passed_over = impl, {}
    if impl == 'auto':
        chosen, passed_over = _best(q, options)
    elif impl not in IMPLS:
        raise ValueError(
            f"unknown {source}={impl!r}: expected 'auto', {', '.join(map(repr, IMPLS))}"
        )
    elif impl not in options:
        raise NotImplementedError(
            f'{op} has no such implementation: {source}={impl!r}; it has {", ".join(options)}'
        )
    elif (reason := options[impl].why_not()) is not None:
        raise NotImplementedError(f'{op} cannot run with {source}={impl!r}: {reason}')
    for decisions in _listeners:
        decisions.append(Decision(op, tuple(q.shape), chosen, passed_over))
    with no_autocast(q.device):
        return options[chosen].run()


def _best(q: Tensor, options: Mapping[str, Option]) -> tuple[str, dict[str, str]]:
    """Return the first implementation that can run and pays, and why not those before it."""
    general = _why_only_reference(q)
    *others, reference = options
    passed_over = {}
    for name in others:
        option = options[name]
        reason = (None if option.plain else general) or option.why_not()
        if reason is None and not option.pays():
            reason = 'another one is faster at this size'
        if reason is None:
            return name, passed_over
        passed_over[name] = reason
    return reference, passed_over


def _why_only_reference(q: Tensor) -> str | None:
    """Return why ``'auto'`` takes the reference whatever else can run, or None."""
    if q.dtype == torch.float64:
        return 'double precision is left to the reference'
    if q.device.type == 'meta':
        return 'there is nothing to compute on the meta device'
    if is_exporting():
        return 'an exported graph is to hold standard operators only'
    return None


# torch >= 2.7
_is_torch_exporting = getattr(torch.compiler, 'is_exporting', lambda: False)


def is_exporting() -> bool:
    """Say whether a graph is captured in order to leave PyTorch, by export, ONNX or tracing."""
    # ONNX exporters go through one or the other.
    return _is_torch_exporting() or torch.jit.is_tracing()


def wants_grad(x: Tensor) -> bool:
    """Say whether what is computed from a tensor is to have a gradient."""
    return torch.is_grad_enabled() and x.requires_grad


def is_capturing() -> bool:
    """Say whether a graph is captured, in order to be compiled or to leave PyTorch."""
    return torch.compiler.is_compiling() or is_exporting()
