"""The gate in front of the benchmark of ops: no times of anything that computes something else."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mmspatial.models.layers.layout import Full
from mmspatial.ops import decay_attention, gated_attention, gaussian_attention

from .op_cases import CASES, IMPLS, Case, Contender, Grid, Setup
from .records import Row

# Of the largest value of the exact result.
BOUND = 5e-6
# In half precision, and where a gradient is a sum that cancels, the reference itself is further
# off; then these multiples of its error, for the output and for gradients. In half precision
# intermediate results may also be rounded once more.
_SLACK = (2.0, 3.0)
_GRIDS: tuple[Grid, ...] = ((5, 4), (23, 29))
_PREFIX = 2
# What an implementation that does not exist, or not here, raises.
CANNOT_RUN = (NotImplementedError, ValueError)


def check_parity(
    ops: Sequence[str], names: Sequence[str], setup: Setup, *, quick: bool
) -> list[Row]:
    """Compare what contenders compute with the reference in float64, gradients included.

    Contenders that are not ours are checked in float32 only: in half precision they round what
    ours do not.

    Args:
        ops: Which.
        names: Of the contenders.
        setup: Device and dtype are used.
        quick: Whether a small grid is enough.

    Returns:
        A row for each result and gradient: ``op, case, impl, what, error, limit``, both of them in
        parts of the exact result's largest value. Contenders that cannot run have none.
    """
    rows = []
    for grid in _GRIDS[:1] if quick else _GRIDS:
        # FlexAttention compiles for each.
        here = [name for name in names if name != 'flex' or grid == _GRIDS[-1]]
        small = Setup(setup.device, setup.dtype, heads=2, width=32)
        cases = {op: CASES[op](grid, small) for op in ops}
        for op, case in (cases | _masked_cases(ops, grid, small)).items():
            rows += [{'op': op.split()[0], **row} for row in _check_case(case, here)]
    return rows


def failures(rows: Sequence[Row]) -> list[str]:
    """Say in words what is further from the exact result than it may be."""
    return [
        f'{row["op"]} ({row["case"]}), {row["impl"]}, {row["what"]}: error {row["error"]:.2g}, '
        f'limit {row["limit"]:.2g}'
        for row in rows
        if not row['error'] <= row['limit']
    ]


def _check_case(case: Case, names: Sequence[str]) -> list[Row]:
    exact = _results(case.contenders['reference'], _copies(case, torch.float64))
    by_reference = _results(case.contenders['reference'], _copies(case))
    dtype = next(iter(case.leaves.values())).dtype
    half = dtype in (torch.float16, torch.bfloat16)
    margin = torch.finfo(dtype).eps / 2 if half else 0.0
    rows = []
    for name, contender in case.contenders.items():
        if name not in names or name == 'floor' or (half and name not in IMPLS):
            continue
        try:
            results = _results_where_possible(contender, case)
        except CANNOT_RUN:
            continue
        except Exception as error:
            if name in IMPLS:
                rows.append(
                    _row(case.label, name, f'{type(error).__name__}: {error}', math.inf, 0.0)
                )
            continue
        for what, found in results.items():
            slack = _SLACK[what != 'output']
            reference_error = _error(by_reference[what], exact[what])
            limit = max(BOUND, slack * reference_error + margin)
            rows.append(_row(case.label, name, what, _error(found, exact[what]), limit))
    return rows


def _row(label: str, impl: str, what: str, error: float, limit: float) -> Row:
    return {'case': label, 'impl': impl, 'what': what, 'error': error, 'limit': limit}


def _results_where_possible(contender: Contender, case: Case) -> dict[str, Tensor]:
    """Return what a contender computes, without gradients where it has none."""
    try:
        return _results(contender, _copies(case))
    except CANNOT_RUN:
        with torch.no_grad():
            return {'output': contender(*case.leaves.values())}


def _results(contender: Contender, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the output and the gradient of each leaf that there is one of."""
    out = contender(*leaves.values())
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).cos().view(out.shape)
    gradients = torch.autograd.grad(
        out, list(leaves.values()), weights.to(out.dtype), allow_unused=True
    )
    found = {f'gradient of {name}': g for name, g in zip(leaves, gradients, strict=True)}
    return {'output': out.detach(), **{name: g for name, g in found.items() if g is not None}}


def _copies(case: Case, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    return {
        name: leaf.detach().to(dtype or leaf.dtype, copy=True).requires_grad_()
        for name, leaf in case.leaves.items()
    }


def _error(found: Tensor, exact: Tensor) -> float:
    """Return the largest difference over the largest exact value; infinite for NaN."""
    scale = exact.abs().max().clamp_min(1e-30)
    error = ((found.double() - exact.double()).abs().max() / scale).item()
    return math.inf if math.isnan(error) else error


def _masked_cases(ops: Sequence[str], grid: Grid, setup: Setup) -> dict[str, Case]:
    """Make cases with prefix tokens and a key mask, and with learned rates of the decay."""
    count = _PREFIX + grid[0] * grid[1]
    mask = torch.ones(1, count, dtype=torch.bool, device=setup.device)
    mask[:, 1::7] = False
    options = dict(positions=grid, num_prefix=_PREFIX, key_mask=mask)
    cases = {}
    for op, function, extra in (
        ('decay_manhattan', decay_attention, {'metric': 'manhattan'}),
        ('decay_euclidean', decay_attention, {'metric': 'euclidean'}),
        ('gated', gated_attention, {}),
        ('gaussian', gaussian_attention, {}),
    ):
        if op not in ops:
            continue
        case = CASES[op](grid, setup)
        leaves = {**setup.tokens((count, 1)), **dict(list(case.leaves.items())[3:])}
        if function is decay_attention:
            leaves['log_decay'] = -torch.linspace(0.02, 0.5, setup.heads, device=setup.device)
        contenders = {
            impl: functools.partial(
                _attend, functools.partial(function, **options, **extra, impl=impl)
            )
            for impl in IMPLS
        }
        cases[f'{op} masked'] = Case(
            f'{case.label}, {_PREFIX} prefix tokens, mask', count, leaves, contenders
        )
    return cases


def _attend(attend: Contender, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
    full = Full()
    q, k, v = (full.split(t, (0, 0)) for t in (q, k, v))
    return full.merge(attend(q, k, v, *rest), (0, 0))
