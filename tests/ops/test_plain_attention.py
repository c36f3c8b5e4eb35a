from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspatial.ops import plain_attention

IMPLS = pytest.mark.parametrize('impl', ['auto', 'reference'])


def by_definition(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Go through groups, heads and queries one by one."""
    out = torch.zeros_like(v)
    for at in torch.cartesian_prod(*map(torch.arange, q.shape[:-2])):
        b, g, h = at.tolist()
        for i in range(q.shape[-2]):
            keys = keep[b, g].nonzero().flatten()
            weights = (k[b, g, h, keys] @ q[b, g, h, i] * q.shape[-1] ** -0.5).exp()
            out[b, g, h, i] = (weights[:, None] * v[b, g, h, keys]).sum(0) / weights.sum()
    return out


@IMPLS
def test_definition_gradients_and_masks(impl: str) -> None:
    q, k, v = torch.randn(3, 2, 2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    keep = torch.rand(2, 2, 5) > 0.3
    keep[..., 0] = True
    out = plain_attention(q, k, v, key_mask=keep, impl=impl)
    torch.testing.assert_close(out, by_definition(q, k, v, keep), rtol=0, atol=1e-12)
    everything = torch.ones(2, 2, 5, dtype=torch.bool)
    whole = plain_attention(q, k, v, impl=impl)
    torch.testing.assert_close(whole, by_definition(q, k, v, everything), rtol=0, atol=1e-12)
    small = [x.detach()[:1, :1, :1, :3].clone().requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *qkv: plain_attention(*qkv, impl=impl), small)


@IMPLS
def test_a_query_without_keys_gives_zeros(impl: str) -> None:
    q, k, v = torch.randn(3, 2, 2, 5, 4, requires_grad=True)
    keep = torch.tensor([[True] * 5, [False] * 5])
    out = plain_attention(q, k, v, key_mask=keep, impl=impl)
    assert out[0].abs().min() > 0
    assert not out[1].any()
    out.sum().backward()


def test_what_does_not_fit_is_named() -> None:
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match='k must be shaped like q'):
        plain_attention(q, q[..., :3], q)
    with pytest.raises(NotImplementedError, match='it has sdpa, reference'):
        plain_attention(q, q, q, impl='chunked')
