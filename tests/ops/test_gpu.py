"""What only a GPU can show: bfloat16, repeatability, and memory of the compiled kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from attention_cases import OPS, Case, make
from test_implementations import relative_errors
from test_triton import compute, exact
from torch import Tensor

from mmspatial.models.layers.layout import Columns, Groups, Rows
from mmspatial.ops import explain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA or ROCm device'),
]
EVERY_OP = pytest.mark.parametrize('op', OPS)
LARGE = Case(heads=4, width=64, positions=(37, 41), prefix=3)


def on_gpu(op: str, case: Case, dtype: torch.dtype) -> tuple[partial, dict[str, Tensor]]:
    """Make a call of an op on the GPU: q, k and v in ``dtype``, the rest in float32."""
    call, tensors = make(op, case, torch.float32)
    keywords = {n: x.cuda() if isinstance(x, Tensor) else x for n, x in call.keywords.items()}
    wide = tensors.keys() - {'q', 'k', 'v'}
    tensors = {
        n: t.detach().cuda().to(torch.float32 if n in wide else dtype).requires_grad_()
        for n, t in tensors.items()
    }
    return partial(call.func, **keywords), tensors


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    'case',
    [
        LARGE,
        replace(LARGE, width=96, value_width=32),
        replace(LARGE, width=128, prefix=0),
        replace(LARGE, width=48, mask=torch.arange(37 * 41 + 3) % 5 > 0),
        replace(LARGE, width=32, prefix=0, layout=Rows()),
        replace(LARGE, width=16, prefix=0, positions=(14, 14), layout=Columns()),
        replace(LARGE, prefix=0, layout=Groups(49, dilated=True)),
        replace(LARGE, prefix=0, layout=Groups(100)),
    ],
)
@EVERY_OP
def test_parity(op: str, case: Case, dtype: torch.dtype) -> None:
    call, tensors = on_gpu(op, case, dtype)
    want = exact(call, tensors)
    errors = relative_errors(compute(call, tensors, 'triton'), want)
    usual = relative_errors(compute(call, tensors, 'reference'), want)
    for name, error in errors.items():
        # A gradient per head is a few numbers, which the reference may meet by luck.
        slack = 1e-5 if want[name].dim() > 1 else torch.finfo(dtype).eps + 1e-5
        assert error <= (2 if name == 'out' else 3) * usual[name] + slack, name


@EVERY_OP
def test_repeats_to_the_bit(op: str) -> None:
    call, tensors = on_gpu(op, LARGE, torch.bfloat16)
    first = compute(call, tensors, 'triton')
    for _ in range(5):
        again = compute(call, tensors, 'triton')
        assert all(torch.equal(again[name], first[name]) for name in first)


@EVERY_OP
def test_auto_takes_the_kernels(op: str) -> None:
    call, tensors = on_gpu(op, LARGE, torch.bfloat16)
    with explain() as decisions:
        call(**tensors)
    assert [d.chosen for d in decisions] == ['triton']


@EVERY_OP
def test_memory_of_a_large_map(op: str) -> None:
    """One bias of N x N would take 8 GiB."""
    case = Case(batch=1, heads=8, width=64, positions=(128, 128))
    call, tensors = on_gpu(op, case, torch.bfloat16)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    out = call(**tensors, impl='triton')
    torch.autograd.grad(out, tensors.values(), torch.ones_like(out))
    assert torch.cuda.max_memory_allocated() < 2**30
