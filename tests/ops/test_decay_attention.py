from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspatial.ops import decay_attention

GRID = (2, 3)
SCATTERED = torch.tensor(
    [
        [[0, 0], [0, 4], [2, 1], [3, 3], [1, 5], [7, 2]],
        [[1, 1], [5, 0], [2, 2], [2, 3], [0, 9], [4, 4]],
    ],
    dtype=torch.float32,
)


def make(groups: int = 0, prefix: int = 0, value_width: int = 4) -> tuple[Tensor, ...]:
    """Draw q, k, v (B=2, M=3, n=6, D=4) and the decays, in float64."""
    lead = (2, *([groups] if groups else []), 3, 6 + prefix)
    q, k = torch.randn(2, *lead, 4, dtype=torch.float64)
    v = torch.randn(*lead, value_width, dtype=torch.float64)
    return q, k, v, -torch.tensor([0.9, 0.3, 0.05], dtype=torch.float64)


def by_loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    positions: tuple[int, int] | Tensor,
    *,
    metric: str = 'manhattan',
    scale: float | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    mode: str = 'logit',
) -> Tensor:
    """Compute the op for one pair of tokens after the other, in Python's numbers."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    length = q.shape[-2]
    if not isinstance(positions, Tensor):
        height, width = positions
        positions = torch.tensor([[(r, c) for r in range(height) for c in range(width)]])
    mask = torch.ones(*q.shape[:-3], length, dtype=torch.bool)
    if key_mask is not None:
        mask = key_mask.expand(mask.shape)

    def bias(group: int, head: int, i: int, j: int) -> float:
        if i < num_prefix or j < num_prefix:
            return 0.0
        (y0, x0), (y1, x1) = (
            positions[group % len(positions)][t - num_prefix].tolist() for t in (i, j)
        )
        dy, dx = y0 - y1, x0 - x1
        dist = abs(dy) + abs(dx) if metric == 'manhattan' else math.hypot(dy, dx)
        return log_decay[head].item() * dist

    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for lead in itertools.product(*map(range, q.shape[:-2])):
        group, head = (lead[1] if len(lead) == 3 else 0), lead[-1]
        keys = [j for j in range(length) if mask[lead[:-1]][j]]
        for i in range(length):
            score, factor = {}, {}
            for j in keys:
                pairs = zip(q[lead][i].tolist(), k[lead][j].tolist(), strict=True)
                product = sum(a * b for a, b in pairs)
                decay = bias(group, head, i, j)
                score[j] = scale * product + (decay if mode == 'logit' else 0.0)
                factor[j] = math.exp(decay) if mode == 'post' else 1.0
            total = sum(math.exp(s) for s in score.values())
            for j in keys:
                out[lead][i] += math.exp(score[j]) / total * factor[j] * v[lead][j]
    return out


MASK = torch.tensor([True, False, True, True, True, False])
CASES: dict[str, tuple[dict[str, int], Any, dict[str, Any]]] = {
    'grid': ({}, GRID, {}),
    'row': ({}, (1, 6), {}),
    'column': ({}, (6, 1), {}),
    'euclidean': ({}, GRID, dict(metric='euclidean')),
    'coordinates': ({}, SCATTERED[:1], dict(metric='euclidean')),
    'scale': ({}, GRID, dict(scale=1.7)),
    'post': ({}, GRID, dict(mode='post')),
    'prefix': (dict(prefix=2), GRID, dict(num_prefix=2)),
    'prefix post': (dict(prefix=1), GRID, dict(num_prefix=1, mode='post')),
    'groups on one grid': (dict(groups=2), GRID, {}),
    'groups': (dict(groups=2), SCATTERED, dict(metric='euclidean')),
    'groups, prefix': (dict(groups=2, prefix=1), SCATTERED, dict(num_prefix=1)),
    'mask of tokens': ({}, GRID, dict(key_mask=MASK)),
    'mask of samples': ({}, GRID, dict(key_mask=torch.stack((MASK, ~MASK)))),
    'mask of groups': (dict(groups=2), SCATTERED, dict(key_mask=torch.stack((MASK, ~MASK)))),
    'mask, post': ({}, GRID, dict(key_mask=MASK, mode='post')),
    'mask without keys': ({}, GRID, dict(key_mask=torch.stack((MASK, MASK & ~MASK)))),
    'wide values': (dict(value_width=7), GRID, {}),
}  # fmt: skip


@pytest.mark.parametrize('case', CASES)
def test_matches_a_loop_over_tokens(case: str) -> None:
    shape, positions, options = CASES[case]
    q, k, v, log_decay = make(**shape)
    out = decay_attention(q, k, v, log_decay, positions, **options)
    expected = by_loop(q, k, v, log_decay, positions, **options)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)


def test_query_without_keys_gives_zeros_and_finite_gradients() -> None:
    q, k, v, log_decay = (t.requires_grad_() for t in make())
    mask = torch.stack((MASK & ~MASK, MASK))
    out = decay_attention(q, k, v, log_decay, GRID, key_mask=mask)
    assert (out[0] == 0).all()
    assert (out[1] != 0).all()
    for grad in torch.autograd.grad(out.sum(), (q, k, v, log_decay)):
        assert grad.isfinite().all()


def test_masked_keys_are_never_read() -> None:
    q, k, v, log_decay = make()
    out = decay_attention(q, k, v, log_decay, GRID, key_mask=MASK)
    k[..., 1, :], v[..., 5, :] = 1e30, -1e30
    assert torch.equal(decay_attention(q, k, v, log_decay, GRID, key_mask=MASK), out)


@pytest.mark.parametrize('mode', ['logit', 'post'])
def test_without_decay_it_is_plain_attention(mode: str) -> None:
    q, k, v, log_decay = make(prefix=1)
    out = decay_attention(q, k, v, log_decay * 0, GRID, num_prefix=1, mode=mode)
    expected = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-14)


def test_strong_decay_leaves_each_token_itself() -> None:
    q, k, v, _ = make()
    out = decay_attention(q, k, v, torch.full((3,), -1e4), GRID)
    torch.testing.assert_close(out, v)


@pytest.mark.parametrize('metric', ['manhattan', 'euclidean'])
def test_permuting_tokens_with_their_positions_permutes_outputs(metric: str) -> None:
    q, k, v, log_decay = make(groups=2)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    out = decay_attention(q, k, v, log_decay, SCATTERED, metric=metric, key_mask=MASK)
    permuted = decay_attention(
        *(t[..., order, :] for t in (q, k, v)), log_decay, SCATTERED[:, order],
        metric=metric, key_mask=MASK[order],
    )  # fmt: skip
    torch.testing.assert_close(permuted, out[..., order, :], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ('groups', 'positions', 'options'),
    [
        (0, (1, 3), dict(num_prefix=1)),
        (0, (3, 1), dict(mode='post', num_prefix=1)),
        (2, SCATTERED[:, :4], dict(metric='euclidean', key_mask=MASK[2:])),
    ],
)
def test_gradcheck(groups: int, positions: Any, options: dict[str, Any]) -> None:
    q, k, v, log_decay = make(groups)
    inputs = [t[..., :4, :2].clone().requires_grad_() for t in (q, k, v)]
    log_decay.requires_grad_()

    def op(*args: Tensor) -> Tensor:
        return decay_attention(*args, positions, **options)

    assert torch.autograd.gradcheck(op, (*inputs, log_decay))


@pytest.mark.parametrize(
    ('dtype', 'bound'), [(torch.float32, 5e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
def test_precision(dtype: torch.dtype, bound: float) -> None:
    q, k, v = torch.randn(3, 1, 2, 48, 32).to(dtype)
    log_decay = torch.tensor([-0.3, -0.01])
    exact = decay_attention(*(t.double() for t in (q, k, v)), log_decay.double(), (6, 8))
    out = decay_attention(q, k, v, log_decay, (6, 8))
    assert out.dtype == dtype
    assert (out - exact).abs().max() <= bound * exact.abs().max()


@pytest.mark.parametrize('autocast', [False, True])
def test_half_precision_survives_logits_beyond_its_range(autocast: bool) -> None:
    q, k, v = (torch.randn(3, 1, 2, 6, 16) * torch.tensor([400, 400, 1]).view(3, 1, 1, 1, 1)).half()
    expected = decay_attention(*(t.double() for t in (q, k, v)), torch.zeros(2).double(), GRID)
    with torch.autocast('cpu', torch.float16, enabled=autocast):
        out = decay_attention(q, k, v, torch.zeros(2), GRID)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)


def test_compiles_into_one_graph() -> None:
    q, k, v, log_decay = make()
    compiled = torch.compile(decay_attention, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(
        compiled(q, k, v, log_decay, GRID), decay_attention(q, k, v, log_decay, GRID)
    )


BAD: dict[str, tuple[dict[str, Any], str]] = {
    'metric': (dict(metric='chebyshev'), "unknown metric 'chebyshev'.*manhattan, euclidean"),
    'mode': (dict(mode='pre'), "unknown mode 'pre'.*logit, post"),
    'impl': (dict(impl='fast'), "unknown impl='fast'.*'reference'"),
    'q': (dict(q=torch.randn(3, 6, 4)), r'q must be .* got \(3, 6, 4\)'),
    'k': (dict(k=torch.randn(2, 3, 5, 4)), r'k must be shaped like q'),
    'v': (dict(v=torch.randn(2, 2, 6, 4)), r'v \(2, 2, 6, 4\)'),
    'log_decay': (dict(log_decay=torch.zeros(2)), r'log_decay must be \(3,\).*got \(2,\)'),
    'grid': (dict(positions=(2, 4)), r'a grid \(2, 4\) has 8 tokens.* has 6'),
    'positions': (dict(positions=torch.zeros(2, 6, 2)), r'positions must be \(1 or 1, 6, 2\)'),
    'prefix': (dict(num_prefix=7), 'num_prefix=7, but there are 6 tokens'),
    'mask shape': (dict(key_mask=MASK[:5]), r'key_mask must be bool and broadcast to \(2, 6\)'),
    'mask dtype': (dict(key_mask=torch.ones(6)), 'key_mask must be bool.*float32'),
}  # fmt: skip


@pytest.mark.parametrize('case', BAD)
def test_bad_input_is_named(case: str) -> None:
    changes, message = BAD[case]
    arguments = dict(zip(('q', 'k', 'v', 'log_decay'), make(), strict=True), positions=GRID)
    with pytest.raises(ValueError, match=message):
        decay_attention(**{**arguments, **changes})


def test_environment_variable_replaces_auto_only(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, log_decay = make()
    expected = decay_attention(q, k, v, log_decay, GRID, impl='reference')

    monkeypatch.setenv('MMSPATIAL_IMPL', 'reference')
    assert torch.equal(decay_attention(q, k, v, log_decay, GRID), expected)

    monkeypatch.setenv('MMSPATIAL_IMPL', 'quick')
    with pytest.raises(ValueError, match="unknown MMSPATIAL_IMPL='quick'"):
        decay_attention(q, k, v, log_decay, GRID)
    assert torch.equal(decay_attention(q, k, v, log_decay, GRID, impl='reference'), expected)
