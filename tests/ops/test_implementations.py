"""Every implementation of the attention ops against the reference in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from attention_cases import CASES, OPS, Case, make
from torch import Tensor

EVERY_OP = pytest.mark.parametrize('op', OPS)


def run(
    op: str, case: Case, impl: str, dtype: torch.dtype, learned: bool = True
) -> dict[str, Tensor]:
    """Return output and gradients of a fixed weighting of it, in float64."""
    call, tensors = make(op, case, dtype)
    if not learned:
        call = partial(call, log_decay=tensors.pop('log_decay').detach())
    out = call(**tensors, impl=impl)
    assert out.dtype == dtype
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).double()
    grads = torch.autograd.grad((out.double() * weight).sum(), tensors.values())
    return {'out': out.double(), **{n: g.double() for n, g in zip(tensors, grads, strict=True)}}


def relative_errors(got: dict[str, Tensor], want: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest error of each tensor by the largest number in it."""
    assert got.keys() == want.keys()
    scale = {name: max(t.abs().max().item(), 0.1) for name, t in want.items()}
    return {n: (got[n] - want[n]).abs().max().item() / scale[n] for n in want}


@pytest.mark.parametrize('name', CASES)
@EVERY_OP
def test_chunked_equals_reference(op: str, name: str) -> None:
    want = run(op, CASES[name], 'reference', torch.float64)
    exact = run(op, CASES[name], 'chunked', torch.float64)
    assert max(relative_errors(exact, want).values()) < 1e-10
    single = run(op, CASES[name], 'chunked', torch.float32)
    errors = relative_errors(single, want)
    assert errors.pop('out') < 5e-6
    assert max(errors.values()) < 2e-5


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('op', ['manhattan', 'euclidean'])
def test_table_equals_reference(op: str, name: str) -> None:
    case = CASES[name]
    if case.mask is not None and case.mask.dim() > 1:
        with pytest.raises(NotImplementedError, match='differs between images'):
            run(op, case, 'table', torch.float32, learned=False)
        return
    want = run(op, case, 'reference', torch.float64, learned=False)
    errors = relative_errors(run(op, case, 'table', torch.float32, learned=False), want)
    assert errors.pop('out') < 5e-6
    assert max(errors.values()) < 2e-5
