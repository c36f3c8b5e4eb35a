"""What has to hold for the attention ops whatever they are given."""

from __future__ import annotations

import pytest
import torch
from attention_cases import OPS, Case, make
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmspatial.models.layers.layout import Columns, Full, Groups, Rows

SHARED = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw sizes, layouts, masks and magnitudes, extreme ones included."""
    grid = draw(
        st.one_of(
            st.tuples(st.integers(1, 9), st.integers(1, 9)),
            st.tuples(st.integers(1, 2), st.integers(1, 130)),
        )
    )
    size = draw(st.integers(1, 12))
    layout = draw(
        st.sampled_from([None, None, Rows(), Columns(), Groups(size), Groups(size, dilated=True)])
    )
    prefix = 0 if layout is not None else draw(st.integers(0, 3))
    mask = None
    if layout is None and draw(st.booleans()):
        length = prefix + grid[0] * grid[1]
        mask = torch.tensor(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    return Case(
        batch=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 3)),
        width=draw(st.sampled_from([4, 16, 20])),
        positions=grid,
        prefix=prefix,
        mask=mask,
        layout=layout,
        scale=draw(st.sampled_from([0.0, 1.0, 30.0, 1e4])),
        decay=draw(st.sampled_from([0.0, -0.3, -40.0, -1e4])),
    )


def results(op: str, case: Case, impl: str, dtype: torch.dtype) -> dict[str, Tensor]:
    call, tensors = make(op, case, dtype)
    out = call(**tensors, impl=impl)
    grads = torch.autograd.grad(out.square().sum(), tensors.values())
    return {'out': out, **dict(zip(tensors, grads, strict=True))}


@pytest.mark.parametrize('op', OPS)
@SHARED
@given(case=cases())
def test_chunked_equals_the_reference(op: str, case: Case) -> None:
    want = results(op, case, 'reference', torch.float64)
    got = results(op, case, 'chunked', torch.float64)
    for name, tensor in want.items():
        # Sums cancel, where logits are huge, to what the largest summand's rounding leaves.
        size = 1 + tensor.abs().max().item() + case.scale * (1 - case.decay)
        torch.testing.assert_close(got[name], tensor, rtol=1e-7, atol=1e-9 * size)


@pytest.mark.parametrize('op', OPS)
@SHARED
@given(case=cases())
def test_nothing_but_numbers_comes_out(op: str, case: Case) -> None:
    nan = torch.nan

    def poisoned(*args: object, **kwargs: object) -> Tensor:
        return empty(*args, **kwargs).fill_(nan)

    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, 'empty', poisoned)
        patch.setattr(torch, 'empty_like', lambda t: torch.full_like(t, nan))
        single = results(op, case, 'chunked', torch.float32)
    assert all(t.isfinite().all() for t in single.values())


@pytest.mark.parametrize('op', OPS)
def test_tokens_without_a_key_give_zeros(op: str) -> None:
    call, tensors = make(op, Case(mask=torch.zeros(15, dtype=torch.bool)), torch.float32)
    out = call(**tensors, impl='chunked')
    assert out.count_nonzero() == 0
    grads = torch.autograd.grad(out.sum(), tensors.values())
    assert all(grad.count_nonzero() == 0 for grad in grads)


@pytest.mark.parametrize('op', OPS)
def test_permuted_tokens_give_permuted_outputs(op: str) -> None:
    positions = torch.rand(1, 15, 2) * 9
    order = torch.randperm(15)
    call, tensors = make(op, Case(positions=positions), torch.float32)
    want = call(**tensors, impl='chunked')[:, :, order]
    permuted = {n: t if t.dim() == 1 else t[:, :, order] for n, t in tensors.items()}
    call.keywords['positions'] = positions[:, order]
    torch.testing.assert_close(call(**permuted, impl='chunked'), want)


def test_layouts_cut_views() -> None:
    x = torch.randn(2, 15, 3, 4)
    for layout in (Full(), Rows(), Columns(), Groups(5), Groups(5, dilated=True)):
        assert (
            layout.split(x, (3, 5)).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        )
