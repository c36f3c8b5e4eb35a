"""What `tools/bench_ops.py` does: the parity gate, then times and memory of all contenders."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence

import torch

from mmspatial.ops import explain

from . import parity, targets
from .measure import (
    Clock,
    Run,
    find_device,
    interleave,
    kept_memory,
    measuring,
    peak_memory,
    quantiles,
)
from .op_cases import CASES, IMPLS, Case, Contender, Setup
from .options import CONTENDERS, DTYPES
from .plots import Panel, Style, curves, plot
from .records import (
    Row,
    add_speedups,
    circumstances,
    describe,
    print_rows,
    reason_of,
    short_name,
    write_csv,
)

FORWARD, BOTH = 'forward', 'forward+backward'
COLUMNS = (
    'op', 'case', 'impl', 'took', 'pass', 'dtype', 'N', 'p20_ms', 'p50_ms', 'p80_ms', 'min_ms',
    'clock', 'speedup_over_published', 'speedup_over_reference', 'peak_mb', 'kept_mb', 'reason',
    'device', 'threads', 'torch', 'triton', 'mmspatial', 'date',
)  # fmt: skip
_SHOWN = (
    'impl', 'took', 'min_ms', 'p50_ms', 'speedup_over_published', 'speedup_over_reference',
    'peak_mb', 'kept_mb', 'reason',
)  # fmt: skip
# Rivals, which stand last, are dashed.
_STYLES = {name: Style(i, dash=int(i > 5)) for i, name in enumerate(CONTENDERS)}


def bench_ops(args: argparse.Namespace) -> int:
    """Run the benchmark as a command line says.

    Args:
        args: As `options.parse_ops_args` returns them.

    Returns:
        The exit code: 1 if an implementation computes something else, in which case nothing is
        timed or written.

    Raises:
        UserError: If there is no such device.
    """
    device = find_device(args.device)
    torch.set_num_threads(args.threads)
    on_gpu = device.type == 'cuda'
    dtype = getattr(torch, DTYPES[args.dtype])
    setup = Setup(device, dtype, args.heads or (8 if on_gpu else 2), args.width)
    # FlexAttention compiles for every size.
    names = [name for name in args.only if not (args.quick and name == 'flex')]

    checked = _check(args, names, setup)
    wrong = parity.failures([row for row in checked if row['impl'] in IMPLS])
    if wrong:
        print('red parity gate, so nothing is timed:', *wrong, sep='\n  ', file=sys.stderr)
        return 1
    print('parity with the float64 reference: all implementations are within their limits')
    # Rivals may round more than ours do, or on some device compute something else.
    unequal = {
        (row['op'], row['impl']): f'not equal to the reference: {text}'
        for row in checked
        for text in parity.failures([row])
    }

    clock = Clock(device, args.threads, quick=args.quick)
    where = circumstances(device, args.threads)
    rows: list[Row] = []
    sides = args.sizes or ((32, 56, 64, 128) if on_gpu else (14, 28, 56))
    with measuring(device):
        for op, side in itertools.product(args.ops, sides):
            case = CASES[op]((side, side), setup)
            for kind in (FORWARD, BOTH):
                reasons = {name: text for (of, name), text in unequal.items() if of == op}
                found = _measure(case, kind, names, reasons, clock, args.rounds)
                common = {'op': op, 'case': case.label, 'N': case.tokens, 'dtype': args.dtype}
                rows += [{**common, 'pass': kind, **row, **where} for row in found]
                print(f'\n{op}, {case.label}, {kind}')
                print_rows(found, _SHOWN)

    name = args.name or f'ops_{short_name(device)}_{args.dtype}'
    write_csv(args.out / f'{name}.csv', COLUMNS, rows)
    plot(args.out / f'{name}.png', _panels(rows), 'tokens N', describe(where), _STYLES)
    make_targets = targets.TARGETS.get((device.type, args.dtype))
    if make_targets is not None:
        errors = [r['error'] for r in checked if r['impl'] in IMPLS and r['dtype'] == 'fp32']
        reached = make_targets(rows, max(errors, default=None))
        print('\ntargets, by the fastest of the rounds', targets.summary(reached), sep='\n')
        file = args.out / f'targets_{args.name or short_name(device)}.json'
        targets.write_json(file, reached, where)
    return 0


def _check(args: argparse.Namespace, names: Sequence[str], setup: Setup) -> list[Row]:
    """Check in float32, and in the run's dtype; return `parity`'s rows with the ``dtype``."""
    rows = []
    for dtype in dict.fromkeys(('fp32', args.dtype)):
        trial = dataclasses.replace(setup, dtype=getattr(torch, DTYPES[dtype]))
        found = parity.check_parity(args.ops, names, trial, quick=args.quick)
        rows += [{**row, 'dtype': dtype} for row in found]
    return rows


def _measure(
    case: Case,
    kind: str,
    names: Sequence[str],
    reasons: Mapping[str, str],
    clock: Clock,
    rounds: int,
) -> list[Row]:
    """Measure one pass of all contenders.

    Args:
        case: See `Case`.
        kind: `FORWARD` or `BOTH`.
        names: Of the contenders wanted.
        reasons: Why some of them are not to be timed.
        clock: See `Clock`.
        rounds: See `interleave`.

    Returns:
        A row for each; for those that cannot run or must not, with the reason.
    """
    rows: dict[str, Row] = {}
    runs: dict[str, Run] = {}
    for name, contender in case.contenders.items():
        if name not in names:
            continue
        rows[name] = {'impl': name}
        if name in reasons:
            rows[name]['reason'] = reasons[name]
            continue
        run = _make_run(case, contender, kind)
        try:
            with explain() as decisions:
                rows[name]['kept_mb'] = kept_memory(run, clock.device)
            if name == 'auto':
                rows[name]['took'] = ' '.join(dict.fromkeys(d.chosen for d in decisions))
            rows[name]['peak_mb'] = peak_memory(run, clock.device)
        except Exception as error:
            rows[name] = {'impl': name, 'reason': reason_of(error)}
            continue
        runs[name] = run
    for name, times in interleave(runs, clock, rounds).items():
        rows[name] |= {**quantiles(times), 'clock': clock.name}
    found = list(rows.values())
    over = {'speedup_over_published': 'published', 'speedup_over_reference': 'reference'}
    add_speedups(found, 'impl', over)
    return found


def _make_run(case: Case, contender: Contender, kind: str) -> Run:
    if kind == FORWARD:

        def forward() -> None:
            with torch.no_grad():
                contender(*case.leaves.values())

        return forward

    leaves = [leaf.detach().requires_grad_() for leaf in case.leaves.values()]

    def both() -> None:
        out = contender(*leaves)
        # Not all contenders have a gradient for all leaves: a bias that is there has none.
        torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    return both


def _panels(rows: Sequence[Row]) -> list[list[Panel]]:
    """Make a row of panels for each op: time of both passes, memory of training."""
    panels = []
    for op in dict.fromkeys(row['op'] for row in rows):
        shown = []
        for kind, column, label in (
            (FORWARD, 'min_ms', 'ms'), (BOTH, 'min_ms', 'ms'), (BOTH, 'peak_mb', 'extra MB'),
        ):  # fmt: skip
            mine = [row for row in rows if (row['op'], row['pass']) == (op, kind)]
            points = curves(mine, lambda row: row['impl'], 'N', column)
            shown.append(Panel(f'{op}, {kind}', label, points))
        panels.append(shown)
    return panels
