from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspatial.ops import gaussian_attention, grid_positions

GRID = (2, 3)
SCATTERED = torch.tensor(
    [
        [[0, 0], [0, 4], [2, 1], [3, 3], [1, 5], [7, 2]],
        [[1, 1], [5, 0], [2, 2], [2, 3], [0, 9], [4, 4]],
    ],
    dtype=torch.float32,
)


def make(groups: int = 0, prefix: int = 0, value_width: int = 4) -> tuple[Tensor, ...]:
    """Draw q, k, v, alpha, var (B=2, M=3, n=6, D=4) in float64."""
    lead = (2, *([groups] if groups else []), 3)
    q, k = torch.randn(2, *lead, 6 + prefix, 4, dtype=torch.float64)
    v = torch.randn(*lead, 6 + prefix, value_width, dtype=torch.float64)
    alpha = torch.rand(*lead, 6, dtype=torch.float64) * 3
    return q, k, v, alpha, torch.rand(*lead, 6, 2, dtype=torch.float64) * 4


def by_loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    var: Tensor,
    positions: list[tuple[float, float]],
    *,
    floor: float = -math.inf,
    eps: float = 0.1,
    scale: float = 0.5,
    num_prefix: int = 0,
    keys: list[bool] | None = None,
    attn_bias: Tensor | None = None,
) -> Tensor:
    """Compute one head ``(L, D)``, a pair of tokens after the other, in Python's numbers."""
    length = len(q)
    keys = [True] * length if keys is None else keys
    out = torch.zeros_like(v)
    for i in range(length):
        weights = []
        for j in range(length):
            logit = scale * sum(a * b for a, b in zip(q[i].tolist(), k[j].tolist(), strict=True))
            if min(i, j) >= num_prefix:
                here, there = positions[i - num_prefix], positions[j - num_prefix]
                exponent = sum(
                    max(-((a - b) ** 2) / 2, floor) / (width + eps)
                    for a, b, width in zip(here, there, var[i - num_prefix].tolist(), strict=True)
                )
                logit += alpha[i - num_prefix].item() * math.exp(exponent)
            if attn_bias is not None:
                logit += attn_bias[i, j].item()
            weights.append(math.exp(logit) if keys[j] else 0.0)
        for weight, value in zip(weights, v, strict=True):
            out[i] += weight / sum(weights) * value
    return out


@pytest.mark.smoke
@pytest.mark.parametrize('prefix', [0, 2])
@pytest.mark.parametrize('floor', [None, -0.7])
def test_grid_equals_loop(prefix: int, floor: float | None) -> None:
    tensors = make(prefix=prefix, value_width=5)
    out = gaussian_attention(*tensors, GRID, num_prefix=prefix, floor=floor, eps=0.3)
    cells = [(r, c) for r in range(GRID[0]) for c in range(GRID[1])]
    bound = -math.inf if floor is None else floor
    for b in range(2):
        for m in range(3):
            head = (t[b, m] for t in tensors)
            expected = by_loop(*head, cells, num_prefix=prefix, floor=bound, eps=0.3)
            torch.testing.assert_close(out[b, m], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('shared', [False, True])
def test_groups_mask_and_bias_equal_loop(shared: bool) -> None:
    tensors = make(groups=2)
    positions = SCATTERED[:1] if shared else SCATTERED
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, False]])
    bias = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    out = gaussian_attention(
        *tensors, positions, scale=0.8, floor=-3.0, key_mask=mask, attn_bias=bias
    )
    for b in range(2):
        for g in range(2):
            for m in range(3):
                expected = by_loop(
                    *(t[b, g, m] for t in tensors), positions[0 if shared else g].tolist(),
                    scale=0.8, floor=-3.0, keys=mask[g].tolist(), attn_bias=bias[g, m],
                )  # fmt: skip
                torch.testing.assert_close(out[b, g, m], expected, rtol=1e-12, atol=1e-12)


def test_query_without_keys_gives_zeros() -> None:
    q, k, v, alpha, var = make()
    out = gaussian_attention(q, k, v, alpha, var, GRID, key_mask=torch.zeros(6, dtype=torch.bool))
    assert not out.any()


def test_alpha_zero_is_plain_attention() -> None:
    q, k, v, alpha, var = make(prefix=1)
    out = gaussian_attention(q, k, v, alpha * 0, var, GRID, num_prefix=1)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))


def test_grid_equals_its_positions() -> None:
    tensors = make()
    positions = grid_positions(*GRID, torch.device('cpu'))
    torch.testing.assert_close(
        gaussian_attention(*tensors, GRID), gaussian_attention(*tensors, positions)
    )


def test_permuting_tokens_with_positions_permutes_outputs() -> None:
    tensors = make()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = (t[:, :, order] for t in tensors)
    torch.testing.assert_close(
        gaussian_attention(*shuffled, SCATTERED[:1, order]),
        gaussian_attention(*tensors, SCATTERED[:1])[:, :, order],
    )


@pytest.mark.parametrize('floor', [None, -0.7])
def test_gradients(floor: float | None) -> None:
    tensors = [t[:1, :2].requires_grad_() for t in make(prefix=1)]

    def op(*inputs: Tensor) -> Tensor:
        return gaussian_attention(*inputs, GRID, num_prefix=1, floor=floor)

    assert torch.autograd.gradcheck(op, tensors)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_computes_the_bias_in_float32(dtype: torch.dtype) -> None:
    q, k, v, alpha, var = make()
    low = [t.to(dtype) for t in (q, k, v)]
    # A bias of 300 on the query itself, which float16 would round by up to 0.25.
    alpha = alpha + 300
    out = gaussian_attention(*low, alpha.float(), var.float(), GRID)
    assert out.dtype == dtype
    expected = gaussian_attention(*(t.double() for t in low), alpha, var, GRID)
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def test_autocast_changes_no_logit() -> None:
    q, k, v, alpha, var = (t.float() for t in make())
    q = q * 300
    expected = gaussian_attention(q, k, v, alpha, var, GRID)
    with torch.autocast('cpu', torch.bfloat16):
        out = gaussian_attention(q, k, v, alpha, var, GRID)
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(alpha=torch.ones(2, 3, 7)), r'alpha must be \(2, 3, 6\)'),
        (dict(var=torch.ones(2, 3, 6)), r'var \(2, 3, 6, 2\)'),
        (dict(floor=0.1), 'floor=0.1'),
        (dict(eps=0.0), 'eps=0.0'),
        (dict(positions=(2, 4)), r'\(2, 4\) has 8 tokens'),
        (dict(impl='magic'), "unknown impl='magic'"),
    ],
)
def test_errors_say_what_does_not_fit(change: dict[str, Any], message: str) -> None:
    q, k, v, alpha, var = make()
    arguments = dict(q=q, k=k, v=v, alpha=alpha, var=var, positions=GRID)
    with pytest.raises(ValueError, match=message):
        gaussian_attention(**{**arguments, **change})
