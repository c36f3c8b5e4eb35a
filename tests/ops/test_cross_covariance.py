from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mmspatial.ops import cross_covariance_attention
from mmspatial.ops.cross_covariance import cross_covariance_folded, cross_covariance_reference

Form = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
FORMS = pytest.mark.parametrize('form', [cross_covariance_folded, cross_covariance_reference])


def inputs(dtype: torch.dtype = torch.float64, tokens: int = 7) -> tuple[Tensor, ...]:
    """Make q, k, v as a model does, as strided views, and a temperature per head."""
    qkv = torch.randn(2, tokens, 3, 3, 4, dtype=dtype)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return q, k, v, torch.tensor([0.5, 1.0, 4.0], dtype=dtype).view(3, 1, 1)


def by_definition(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
    """Go through samples, heads and channels one by one."""
    out = torch.zeros_like(v)
    batch, heads, _, channels = q.shape
    for b in range(batch):
        for h in range(heads):
            for i in range(channels):
                query = q[b, h, :, i]
                cosines = [
                    torch.dot(query, k[b, h, :, j]) / (query.norm() * k[b, h, :, j].norm())
                    for j in range(channels)
                ]
                weights = (temperature[h, 0, 0] * torch.stack(cosines)).exp()
                for j in range(channels):
                    out[b, h, :, i] += weights[j] / weights.sum() * v[b, h, :, j]
    return out


@pytest.mark.smoke
@FORMS
def test_definition(form: Form) -> None:
    args = inputs()
    torch.testing.assert_close(form(*args), by_definition(*args), rtol=0, atol=1e-14)


@FORMS
def test_gradients(form: Form) -> None:
    args = [x.detach().clone().requires_grad_() for x in inputs()]
    assert torch.autograd.gradcheck(form, args)


@FORMS
def test_lengths_do_not_matter_and_tokens_have_no_order(form: Form) -> None:
    q, k, v, temperature = inputs()
    expected = form(q, k, v, temperature)
    scaled = form(q * 100, k * torch.rand(4, dtype=torch.float64).add(0.1), v, temperature)
    torch.testing.assert_close(scaled, expected)
    order = torch.randperm(7)
    permuted = form(*(x[:, :, order] for x in (q, k, v)), temperature)
    torch.testing.assert_close(permuted, expected[:, :, order])


@FORMS
def test_a_channel_of_zeros_weighs_all_alike(form: Form) -> None:
    q, k, v, temperature = (x.float() for x in inputs())
    q = q.clone()
    q[..., 1] = 0
    q.requires_grad_()
    out = form(q, k, v, temperature)
    torch.testing.assert_close(out[..., 1], v.mean(-1))
    out.sum().backward()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_is_at_most_twice_that_of_the_reference(dtype: torch.dtype) -> None:
    wide = [x.requires_grad_() for x in inputs(tokens=100)]
    expected = cross_covariance_reference(*wide)
    expected.sum().backward()
    errors = []
    for impl in ('auto', 'reference'):
        args = [x.detach().to(dtype).requires_grad_() for x in wide]
        out = cross_covariance_attention(*args, impl=impl)
        assert out.dtype == dtype
        out.sum().backward()
        errors.append((out - expected).abs().max().item())
        for got, exact in zip(args, wide, strict=True):
            bound = 20 * torch.finfo(dtype).eps * exact.grad.abs().max()
            assert (got.grad - exact.grad).abs().max() <= bound
    print(f'{dtype}: error {errors[0]:.1e}, of the reference {errors[1]:.1e}')
    assert errors[0] <= 2 * errors[1] + 1e-5


def test_float16_does_not_overflow() -> None:
    q, k, v, temperature = inputs(torch.float16, tokens=1000)
    out = cross_covariance_attention(q * 1000, k * 1000, v, temperature)
    assert out.isfinite().all()
    expected = cross_covariance_reference(*(x.double() for x in (q, k, v, temperature)))
    assert (out - expected).abs().max() <= 0.01 * expected.abs().max()
    with torch.autocast('cpu', torch.float16):
        wide = cross_covariance_attention(q.float() * 1000, k.float() * 1000, v, temperature)
    assert wide.isfinite().all()


def test_says_what_does_not_fit() -> None:
    q, k, v, temperature = inputs()
    with pytest.raises(ValueError, match=r'one shape .* \(2, 3, 6, 4\), \(2, 3, 7, 4\)'):
        cross_covariance_attention(q, k[:, :, :6], v, temperature)
    with pytest.raises(ValueError, match=r'temperature must be \(3, 1, 1\), got \(3,\)'):
        cross_covariance_attention(q, k, v, temperature.flatten())
    with pytest.raises(NotImplementedError, match='chunked'):
        cross_covariance_attention(q, k, v, temperature, impl='chunked')
