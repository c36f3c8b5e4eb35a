"""The Triton kernels in Triton's interpreter against the reference in float64."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from attention_cases import OPS, Case, make
from test_implementations import relative_errors
from torch import Tensor

from mmspatial.models.layers.layout import Columns, Groups, Rows
from mmspatial.ops import _flash, decay_attention
from mmspatial.ops.decay_attention import triton as decay_kernels

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason='the kernels are compiled here: test_gpu.py runs them'
)
EVERY_OP = pytest.mark.parametrize('op', OPS)
SMALL = Case(batch=1, heads=1)
SOME_AND_NO_KEYS = torch.stack([torch.arange(36) % 3 > 0, torch.zeros(36) > 0])
TILES = replace(SMALL, positions=(5, 8), prefix=2, value_width=24)


def compute(call: Callable, tensors: dict[str, Tensor], impl: str) -> dict[str, Tensor]:
    """Return output and gradients of a fixed weighting of it, in float64."""
    out = call(**tensors, impl=impl)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    grads = torch.autograd.grad(out, tensors.values(), weight)
    assert out.dtype == tensors['v'].dtype
    assert [g.dtype for g in grads] == [t.dtype for t in tensors.values()]
    return {'out': out.double(), **{n: g.double() for n, g in zip(tensors, grads, strict=True)}}


def exact(call: Callable, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Compute with the reference, in float64, from the very same numbers."""
    wide = {n: t.detach().double().requires_grad_() for n, t in tensors.items()}
    return compute(call, wide, 'reference')


# In float32 a tile has 32 tokens, and groups of at most 32 share one.
CASES = {
    'tiles': TILES,
    'tiles of groups': Case(batch=1, heads=1, positions=torch.rand(2, 34, 2) * 9, groups=2),
    'masked tiles': Case(heads=1, positions=(3, 12), mask=SOME_AND_NO_KEYS),
    'rows': Case(positions=(3, 5), layout=Rows()),
    'columns': Case(heads=1, positions=(3, 5), layout=Columns(), value_width=20),
    'dilated groups with padding': Case(positions=(3, 5), layout=Groups(4, dilated=True)),
    'masked groups': Case(
        batch=1, groups=6, positions=(2, 2), prefix=3, mask=torch.arange(42).view(6, 7) > 9
    ),
    'one token': Case(positions=(1, 1)),
}


@pytest.mark.parametrize('name', CASES)
@EVERY_OP
def test_float32(op: str, name: str) -> None:
    call, tensors = make(op, CASES[name], torch.float32)
    errors = relative_errors(compute(call, tensors, 'triton'), exact(call, tensors))
    assert errors.pop('out') < 2e-6
    assert max(errors.values()) < 1e-5


# In float16 a tile has 64 tokens.
@pytest.mark.parametrize(
    'case',
    [replace(TILES, positions=(9, 8)), Case(positions=(3, 20), layout=Rows(), heads=1)],
    ids=['tiles', 'rows'],
)
@EVERY_OP
def test_float16(op: str, case: Case) -> None:
    call, tensors = make(op, case, torch.float16)
    for name in tensors.keys() - {'q', 'k', 'v'}:
        tensors[name] = tensors[name].detach().float().requires_grad_()
    want = exact(call, tensors)
    errors = relative_errors(compute(call, tensors, 'triton'), want)
    usual = relative_errors(compute(call, tensors, 'reference'), want)
    for name, error in errors.items():
        # A gradient per head is a number or two, which one of both may meet by luck.
        slack = 1e-5 if want[name].dim() > 1 else torch.finfo(torch.float16).eps
        assert error <= (2 if name == 'out' else 3) * usual[name] + slack, name


@pytest.mark.parametrize(
    'change',
    [
        dict(scale=100.0),  # logits of up to 10^5
        dict(decay=-1e4),
        dict(decay=0.0),
        dict(settings={'scale': -0.7}),
        dict(settings={'scale': 0.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize('op', ['manhattan', 'gated'])
def test_extreme_logits(op: str, change: dict[str, Any]) -> None:
    call, tensors = make(op, replace(TILES, **change), torch.float32)
    got, want = compute(call, tensors, 'triton'), exact(call, tensors)
    # Logits of 10^5 are known to 0.01.
    bound = 0.05 if 'scale' in change else 1e-5
    assert max(relative_errors(got, want).values()) < bound


def test_log_sum_exp() -> None:
    q, k, v = torch.randn(3, 2, 1, 2, 40, 16)
    positions = torch.rand(1, 40, 2)
    mask = torch.stack([torch.arange(40) < 30, torch.zeros(40) > 0])[:, None]
    arguments = q, k, v, torch.tensor([-1.0, 0.5]), positions, mask, None, 'euclidean', 0.2, 0
    out, lse = decay_kernels.forward(*arguments)
    logits = 0.2 * q @ k.mT + arguments[3][:, None, None] * torch.cdist(
        positions, positions, compute_mode='donot_use_mm_for_euclid_dist'
    )
    want = logits[..., :30].logsumexp(-1)
    torch.testing.assert_close(lse[0], want[0], rtol=1e-5, atol=1e-5)
    assert (lse[1] == torch.inf).all()
    assert not out[1].any()


@pytest.fixture
def _poisoned_memory() -> Iterator[None]:
    """PyTorch fills what it allocates with NaN while it is deterministic."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures('_poisoned_memory')
@pytest.mark.parametrize(
    'case', [TILES, Case(positions=(3, 5), layout=Rows(), width=20)], ids=['tiles', 'rows']
)
@pytest.mark.parametrize('op', ['manhattan', 'gated', 'gaussian'])
def test_nothing_outside_of_the_tensors_matters(op: str, case: Case) -> None:
    """Also not what keys hold that are masked out; views keep the strides of their tensors."""
    mask = None if case.layout else torch.arange(42) < 35
    call, tensors = make(op, replace(case, mask=mask), torch.float32)
    want = compute(call, tensors, 'triton')
    views = {}
    for name, t in tensors.items():
        # Every second number, from one on, of a tensor that is NaN elsewhere.
        surrounding = torch.full([2 * size + 2 for size in t.shape], torch.nan)
        view = surrounding[tuple(slice(1, 2 * size + 1, 2) for size in t.shape)]
        views[name] = view.copy_(t.detach()).requires_grad_()
        if mask is not None and name in 'kv':
            view.data[..., 35:, :] = torch.nan
    got = compute(call, views, 'triton')
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-5, atol=1e-6, msg=name)
    assert all(t.isfinite().all() for t in want.values())


def test_offsets_beyond_32_bits() -> None:
    """Two tokens at the ends of 4 GiB, of which nothing but them is ever touched."""
    memory = torch.empty(2**31 + 16, dtype=torch.float16)
    far = memory.as_strided((1, 1, 2, 16), (0, 0, 2**31, 1)).copy_(torch.randn(1, 1, 2, 16))
    near = far.clone(memory_format=torch.contiguous_format)
    call = partial(decay_attention, log_decay=-torch.ones(1), positions=(1, 2), impl='triton')
    assert torch.equal(call(far, far, far), call(near, near, near))


@pytest.mark.parametrize(
    ('q', 'v', 'reason'),
    [
        (torch.zeros(4, 16), torch.zeros(4, 16), 'q is on cpu: it needs a CUDA or ROCm device'),
        (torch.zeros(4, 16), torch.zeros(4, 160), 'head width 160 > 128'),
        (torch.zeros(4, 16).double(), torch.zeros(4, 16).double(), 'q is torch.float64'),
        (torch.zeros(4, 16), torch.zeros(4, 16).half(), 'and v torch.float16: it takes one dtype'),
    ],
)
def test_says_why_it_cannot_run(
    q: Tensor, v: Tensor, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_flash, 'is_interpreted', lambda: False)
    assert reason in _flash.why_not(q, v)


def test_interpreter_takes_what_it_computes_right() -> None:
    q = torch.zeros(1, 1, 4, 16)
    assert _flash.why_not(q, q) is None
    with pytest.raises(NotImplementedError, match=r"impl='triton': .*miscomputes bfloat16"):
        decay_attention(*[q.bfloat16()] * 3, torch.zeros(1), (2, 2), impl='triton')


def test_says_which_triton_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_flash.triton, '__version__', '3.3.1')
    q = torch.zeros(1, 1, 4, 16)
    assert _flash.why_not(q, q) == 'triton 3.3.1 is older than 3.4'


def test_imports_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'triton', None)
    spec = importlib.util.spec_from_file_location('flash_without_triton', _flash.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert module.why_not(torch.zeros(4, 16), torch.zeros(4, 16)) == 'triton is not installed'
