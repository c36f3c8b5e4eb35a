"""The attention ops as PyTorch's dispatcher knows them: `torch.ops.mmspatial.<op>`.

What runs outside of what PyTorch can trace - loops over tiles, Triton - is one opaque operator per
op here, with its gradient as another, so that `torch.compile`, `opcheck`, and everything else that
works on operators works on them. They see normalised arguments, in this order:

    q, k, v           (B, G, M, L, D), the values E wide; strided views as they come
    <tensors>         what the op's bias is made from
    positions         (G or 1, n, 2) float32
    key_mask          bool, broadcastable to (B, G, L), or None
    grid              [H, W] if the positions are those of a grid, else None
    <options>         the op's own words and numbers
    scale, num_prefix

Each implementation is a module with ``forward(*arguments) -> (out, lse)`` and ``backward(grad_out,
*arguments, bias_grad)``, which also gets ``out, lse`` after ``key_mask`` and returns the gradients
of q, k, v and, if ``bias_grad``, of the tensors. ``out`` and the gradients of q, k, v are
``empty_like`` their tensors: dense, in the same order of strides. ``lse`` is the log-sum-exp of the
logits, float32 ``(B, G, M, L)``, infinite for a query without any key; `chunked`, which does not
need it, leaves it empty.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._dispatch import wants_grad
from ._flash import why_not as why_not_triton
from ._softmax import no_autocast
from .positions import Positions, grid_positions


def define_attention(
    name: str, tensors: Sequence[str], options: Sequence[str]
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Register an attention op and its gradient.

    Args:
        name: The op's name, and its folder's, whose modules are the implementations.
        tensors: Names of the tensors that the bias is made from.
        options: The op's own options, as in a schema: ``'str metric'``.

    Returns:
        ``op(q, k, v, *tensors, positions, key_mask, grid, *options, scale, num_prefix, impl)``,
        which returns the output and the log-sum-exp.
    """
    listed = ''.join(f'Tensor {t}, ' for t in tensors)
    inputs = f'Tensor q, Tensor k, Tensor v, {listed}Tensor positions, Tensor? key_mask'
    words = ''.join(f'{option}, ' for option in options)
    settings = f'SymInt[]? grid, {words}float scale, SymInt num_prefix, str impl'
    # Where these stand among the arguments.
    num_grads = 3 + len(tensors)
    num_inputs = num_grads + 2

    def module(impl: str) -> Any:
        return importlib.import_module(f'mmspatial.ops.{name}.{impl}')

    def forward(*args: Any) -> tuple[Tensor, Tensor]:
        with no_autocast(args[0].device):
            return module(args[-1]).forward(*args[:-1])

    def forward_fake(*args: Any) -> tuple[Tensor, Tensor]:
        q, v, impl = args[0], args[2], args[-1]
        rows = q.shape[:-1] if impl == 'triton' else 0
        return torch.empty_like(v), q.new_empty(rows, dtype=torch.float32)

    def backward(grad_out: Tensor, *args: Any) -> list[Tensor]:
        *args, impl, bias_grad = args
        with no_autocast(grad_out.device):
            grads = module(impl).backward(grad_out, *args, bias_grad)
        if not bias_grad:
            grads = (*grads[:3], *(torch.zeros_like(t) for t in args[3:num_grads]))
        return [*grads[:3], *(grad.contiguous() for grad in grads[3:])]

    def backward_fake(grad_out: Tensor, *args: Any) -> list[Tensor]:
        dense = (t.new_empty(t.shape) for t in args[3:num_grads])
        return [*(torch.empty_like(t) for t in args[:3]), *dense]

    def setup_context(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:num_inputs], *output)
        ctx.settings = inputs[num_inputs:]
        ctx.mark_non_differentiable(output[1])

    def differentiate(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        bias_grad = any(ctx.needs_input_grad[3:num_grads])
        grads = gradient(grad_out, *ctx.saved_tensors, *ctx.settings, bias_grad)
        wanted = zip(grads, ctx.needs_input_grad, strict=False)
        return (
            *(grad if want else None for grad, want in wanted),
            *(None for _ in range(2 + len(ctx.settings))),
        )

    op = torch.library.custom_op(
        f'mmspatial::{name}', forward, mutates_args=(),
        schema=f'({inputs}, {settings}) -> (Tensor, Tensor)',
    )  # fmt: skip
    gradient = torch.library.custom_op(
        f'mmspatial::{name}_backward', backward, mutates_args=(),
        schema=f'(Tensor grad_out, {inputs}, Tensor out, Tensor lse, {settings}, bool bias_grad)'
        ' -> Tensor[]',
    )  # fmt: skip
    op.register_fake(forward_fake)
    gradient.register_fake(backward_fake)
    op.register_autograd(differentiate, setup_context=setup_context)
    return op


def why_not(impl: str, q: Tensor, v: Tensor, positions: Positions) -> str | None:
    """Return why ``'chunked'`` or ``'triton'`` cannot run with these tensors, None if it can."""
    if isinstance(positions, Tensor) and positions.requires_grad:
        return 'it has no gradient for positions'
    return why_not_triton(q, v) if impl == 'triton' else None


class Least(NamedTuple):
    """Sizes from which `chunked` beats the reference (CPU, one thread).

    Attributes:
        keys: Of a row: shorter ones cost it more than they save, however many there are.
        logits: Of all rows.
    """

    keys: int
    logits: int


_LEAST, _LEAST_WITH_GRAD = Least(49, 200_000), Least(49, 2**20)


def pays(
    impl: str, q: Tensor, without_grad: Least = _LEAST, with_grad: Least = _LEAST_WITH_GRAD
) -> bool:
    """Say whether an implementation is faster here than the reference."""
    if impl == 'triton':
        return not q.is_cpu  # where it is interpreted, for tests
    least = with_grad if wants_grad(q) else without_grad
    return q.shape[-2] >= least.keys and math.prod(q.shape[:-1]) * q.shape[-2] >= least.logits


def call(
    op: Callable[..., tuple[Tensor, Tensor]],
    impl: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: Sequence[Tensor],
    positions: Positions,
    key_mask: Tensor | None,
    options: Sequence[Any],
    scale: float | None,
    num_prefix: int,
) -> Tensor:
    """Call an operator of `define_attention` with what its public function was given.

    Args:
        op: From `define_attention`.
        impl: ``'chunked'`` or ``'triton'``.
        q: ``(B, [G,] M, L, D)``; k and v likewise.
        k: See `q`.
        v: See `q`.
        tensors: Of the bias: per head ``(M,)``, or per token, with the group axis if q has one.
        positions: A grid or coordinates.
        key_mask: As the public functions take it.
        options: Values of the op's own options.
        scale: Factor on the products; None for D**-0.5.
        num_prefix: Tokens without a position.

    Returns:
        The output, shaped like ``v``.
    """
    grid = None
    if not isinstance(positions, Tensor):
        grid = list(positions)
        positions = grid_positions(*grid, q.device)
    positions = positions.to(q.device, torch.float32)
    arguments = positions, grouped_mask(key_mask, q), grid, *options
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if q.dim() == 5:
        return op(q, k, v, *tensors, *arguments, scale, num_prefix, impl)[0]
    q, k, v, *tensors = (t if t.dim() == 1 else t.unsqueeze(1) for t in (q, k, v, *tensors))
    return op(q, k, v, *tensors, *arguments, scale, num_prefix, impl)[0].squeeze(1)


def grouped_mask(key_mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Give a mask, broadcastable to ``(B, [G,] L)``, all three axes (B or 1, G or 1, L or 1)."""
    if key_mask is None:
        return None
    if q.dim() == 4 and key_mask.dim() == 2:
        return key_mask.unsqueeze(1)
    return key_mask.reshape(*(1,) * (3 - key_mask.dim()), *key_mask.shape)
