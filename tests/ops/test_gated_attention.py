from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspatial.ops import decay_attention, gated_attention

GRID = (2, 3)
MASK = torch.tensor([True, False, True, True, True, False])
SCATTERED = torch.tensor(
    [
        [[0, 0], [0, 4], [2, 1], [3, 3], [1, 5], [7, 2]],
        [[1, 1], [5, 0], [2, 2], [2, 3], [0, 9], [4, 4]],
    ],
    dtype=torch.float32,
)


def make(groups: int = 0, prefix: int = 0) -> tuple[Tensor, ...]:
    """Draw q, k, v (B=2, M=3, n=6, D=4), gates and alpha, in float64."""
    lead = (2, *([groups] if groups else []), 3)
    q, k, v = torch.randn(3, *lead, 6 + prefix, 4, dtype=torch.float64)
    gate = F.logsigmoid(torch.randn(*lead, 6, dtype=torch.float64))
    return q, k, v, gate, torch.tensor([1.0, -0.4, 2.5], dtype=torch.float64)


def by_loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    alpha: Tensor,
    positions: tuple[int, int] | Tensor,
    *,
    scale: float | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute the op for one pair of tokens after the other, in Python's numbers."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not isinstance(positions, Tensor):
        height, width = positions
        positions = torch.tensor([[(r, c) for r in range(height) for c in range(width)]])
    length, p = q.shape[-2], num_prefix
    out = torch.zeros_like(v)
    for lead in itertools.product(*map(range, q.shape[:-2])):
        where = positions[(lead[1] if len(lead) == 3 else 0) % len(positions)].tolist()
        for i in range(length):
            terms = {}
            for j in range(length):
                if (
                    key_mask is not None
                    and not key_mask.expand(*q.shape[:-3], length)[lead[:-1]][j]
                ):
                    continue
                bias = 0.0
                if min(i, j) >= p:
                    (y0, x0), (y1, x1) = where[i - p], where[j - p]
                    gates = gate[lead][i - p].item() + gate[lead][j - p].item()
                    bias = -abs(alpha[lead[-1]].item() / 2 * gates * (abs(y0 - y1) + abs(x0 - x1)))
                terms[j] = math.exp(scale * (q[lead][i] @ k[lead][j]).item() + bias)
            for j, term in terms.items():
                out[lead][i] += term / sum(terms.values()) * v[lead][j]
    return out


CASES: dict[str, tuple[dict[str, int], Any, dict[str, Any]]] = {
    'grid': ({}, GRID, {}),
    'row': ({}, (1, 6), {}),
    'column': ({}, (6, 1), {}),
    'coordinates': ({}, SCATTERED[:1], {}),
    'scale': ({}, GRID, dict(scale=1.7)),
    'prefix': (dict(prefix=2), GRID, dict(num_prefix=2)),
    'groups on one grid': (dict(groups=2), GRID, {}),
    'groups, prefix': (dict(groups=2, prefix=1), SCATTERED, dict(num_prefix=1)),
    'mask of samples': ({}, GRID, dict(key_mask=torch.stack((MASK, ~MASK)))),
    'mask of groups': (dict(groups=2), SCATTERED, dict(key_mask=torch.stack((MASK, ~MASK)))),
    'mask without keys': ({}, GRID, dict(key_mask=torch.stack((MASK, MASK & ~MASK)))),
}


@pytest.mark.parametrize('case', CASES)
def test_matches_a_loop_over_tokens(case: str) -> None:
    shape, positions, options = CASES[case]
    inputs = make(**shape)
    out = gated_attention(*inputs, positions, **options)
    torch.testing.assert_close(out, by_loop(*inputs, positions, **options), rtol=0, atol=1e-13)


@pytest.mark.parametrize('num_prefix', [0, 1])
def test_equal_gates_are_a_fixed_decay(num_prefix: int) -> None:
    q, k, v, gate, alpha = make(prefix=num_prefix)
    decay = -torch.tensor([0.9, 0.3, 0.05], dtype=torch.float64)
    gate = decay[:, None].expand_as(gate)
    out = gated_attention(q, k, v, gate, torch.ones_like(alpha), GRID, num_prefix=num_prefix)
    expected = decay_attention(q, k, v, decay, GRID, num_prefix=num_prefix)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-14)


def test_alpha_zero_is_plain_attention() -> None:
    q, k, v, gate, alpha = make()
    out = gated_attention(q, k, v, gate, alpha * 0, GRID)
    expected = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-14)


def test_permuting_tokens_with_positions_and_gates_permutes_outputs() -> None:
    q, k, v, gate, alpha = make(groups=2)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    out = gated_attention(q, k, v, gate, alpha, SCATTERED)
    permuted = gated_attention(
        *(t[..., order, :] for t in (q, k, v)), gate[..., order], alpha, SCATTERED[:, order]
    )
    torch.testing.assert_close(permuted, out[..., order, :], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ('groups', 'positions', 'options'),
    [
        (0, (1, 3), dict(num_prefix=1)),
        (2, SCATTERED[:, :4], dict(key_mask=MASK[2:])),
        (0, (2, 2), dict(key_mask=torch.tensor([[True] * 4, [False] * 4]))),
    ],
)
def test_gradcheck(groups: int, positions: Any, options: dict[str, Any]) -> None:
    q, k, v, gate, alpha = make(groups)
    n = 4 - options.get('num_prefix', 0)
    inputs = [t[..., :4, :2].clone().requires_grad_() for t in (q, k, v)]
    inputs += [gate[..., :n].clone().requires_grad_(), alpha.requires_grad_()]

    def op(*args: Tensor) -> Tensor:
        return gated_attention(*args, positions, **options)

    assert torch.autograd.gradcheck(op, inputs)


@pytest.mark.parametrize(
    ('dtype', 'bound'), [(torch.float32, 5e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
def test_precision(dtype: torch.dtype, bound: float) -> None:
    """Gates and alpha are float32 parameters' values, whatever q, k and v are."""
    q, k, v = torch.randn(3, 1, 2, 48, 32).to(dtype)
    gate, alpha = F.logsigmoid(torch.randn(1, 2, 48)), torch.tensor([1.0, 0.3])
    exact = gated_attention(*(t.double() for t in (q, k, v, gate, alpha)), (6, 8))
    out = gated_attention(q, k, v, gate, alpha, (6, 8))
    assert out.dtype == dtype
    assert (out - exact).abs().max() <= bound * exact.abs().max()


SIGNS = {
    'negative': (-0.1, -3.0),
    'positive': (0.2, 2.0),
    'either': (-2.0, 0.0, 1.5),
    'extreme': (-1e-3, -1e4),
    'extreme or 0': (0.0, -1e4),
}


@pytest.mark.parametrize('num_prefix', [0, 2])
@pytest.mark.parametrize('grid', [(5, 7), (1, 1030)])
@pytest.mark.parametrize('signs', SIGNS)
def test_chunked_takes_gates_of_any_sign(
    signs: str, grid: tuple[int, int], num_prefix: int
) -> None:
    """What it does in fewer passes where it may; the long row is beyond its table of distances."""
    n = grid[0] * grid[1]
    q, k, v, grad = torch.randn(4, 1, 1, n + num_prefix, 4, dtype=torch.float64)
    gate = torch.tensor(SIGNS[signs], dtype=torch.float64)[torch.arange(n) % len(SIGNS[signs])]
    alpha = torch.tensor([-0.7], dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (q, k, v, gate.view(1, 1, n), alpha)]

    def results(impl: str) -> tuple[Tensor, ...]:
        out = gated_attention(*inputs, grid, num_prefix=num_prefix, impl=impl)
        return out, *torch.autograd.grad(out, inputs, grad)

    for got, want in zip(results('chunked'), results('reference'), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9 * max(1, want.abs().max().item()))


@pytest.mark.parametrize('autocast', [False, True])
def test_half_precision_survives_logits_beyond_its_range(autocast: bool) -> None:
    q, k, v = (torch.randn(3, 1, 3, 6, 16) * torch.tensor([400, 400, 1]).view(3, 1, 1, 1, 1)).half()
    gate, alpha = torch.full((1, 3, 6), -1e5), torch.ones(3)
    expected = gated_attention(*(t.double() for t in (q, k, v, gate, alpha)), GRID)
    with torch.autocast('cpu', torch.float16, enabled=autocast):
        out = gated_attention(q, k, v, gate, alpha, GRID)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)


def test_compiles_into_one_graph() -> None:
    inputs = make()
    compiled = torch.compile(gated_attention, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(*inputs, GRID), gated_attention(*inputs, GRID))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    'impl': (dict(impl='fast'), r"unknown impl='fast'.*'reference'"),
    'q': (dict(q=torch.randn(3, 6, 4)), r'q must be .* got \(3, 6, 4\)'),
    'gate': (dict(gate=torch.zeros(2, 3, 6, 1)), r'gate must be \(2, 3, 6\), got \(2, 3, 6, 1\)'),
    'alpha': (dict(alpha=torch.zeros(2)), r'alpha must be \(3,\).*got \(2,\)'),
    'grid': (dict(positions=(2, 4)), r'a grid \(2, 4\) has 8 tokens.* has 6'),
    'mask': (dict(key_mask=MASK[:5]), r'key_mask must be bool and broadcast to \(2, 6\)'),
}


@pytest.mark.parametrize('case', BAD)
def test_bad_input_is_named(case: str) -> None:
    changes, message = BAD[case]
    arguments = dict(zip(('q', 'k', 'v', 'gate', 'alpha'), make(), strict=True), positions=GRID)
    with pytest.raises(ValueError, match=message):
        gated_attention(**{**arguments, **changes})


def test_environment_variable_forces_an_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make()
    expected = gated_attention(*inputs, GRID, impl='reference')
    monkeypatch.setenv('MMSPATIAL_IMPL', 'reference')
    assert torch.equal(gated_attention(*inputs, GRID), expected)
    monkeypatch.setenv('MMSPATIAL_IMPL', 'quick')
    with pytest.raises(ValueError, match="unknown MMSPATIAL_IMPL='quick'"):
        gated_attention(*inputs, GRID)
