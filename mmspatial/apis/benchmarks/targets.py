"""Bounds on what a benchmark measures, and those that the ops must keep to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .records import Row

# The token grid of 56x56, on which most targets are set.
_LARGE = 3136
# Of two times that are the same but for noise.
_NOISE = 1.03


@dataclass(frozen=True)
class Target:
    """A bound on a number of a run.

    Attributes:
        text: What is bounded.
        measured: The number; None where the run has not measured it.
        must: The bound; None where there is only an aim.
        at_most: Whether the number must not be above the bound; below it otherwise.
        unit: Of both.
        aim: A bound that is wished for.
    """

    text: str
    measured: float | None
    must: float | None
    at_most: bool = True
    unit: str = 'x'
    aim: float | None = None

    @property
    def met(self) -> bool | None:
        """Say whether it is reached; None if nothing was measured, or nothing must be reached."""
        if self.measured is None or self.must is None:
            return None
        return self.measured <= self.must if self.at_most else self.measured >= self.must

    def bound(self, number: float | None) -> str | None:
        """Write ``must`` or ``aim`` as a bound; None if it is None."""
        sign = '<=' if self.at_most else '>='
        return None if number is None else f'{sign} {number:g}{self.unit}'


class Measured:
    """Rows of a run, looked up by what was measured.

    Args:
        rows: As `bench_ops` makes them.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {(row['op'], row['N'], row['impl'], row['pass']): row for row in rows}

    def value(self, op: str, n: int, impl: str, kind: str, column: str = 'min_ms') -> float | None:
        """Return a number of a row, or None."""
        return self.rows.get((op, n, impl, kind), {}).get(column)

    def ratio(self, op: str, n: int, impl: str, over: str, kind: str) -> float | None:
        """Return one contender's time over another's, or None."""
        times = [self.value(op, n, name, kind) for name in (impl, over)]
        return None if None in times else times[0] / times[1]

    def speedup(self, op: str, n: int, over: str, kind: str) -> float | None:
        """Return how many times faster ``auto`` is, or None."""
        return self.ratio(op, n, over, 'auto', kind)

    def sizes(self, at_least: int) -> list[int]:
        """List the N that were measured."""
        return sorted({n for _, n, _, _ in self.rows if n >= at_least})


def cpu_targets(rows: Sequence[Row], worst_error: float | None) -> list[Target]:
    """List the targets on a CPU.

    Args:
        rows: As `bench_ops` makes them.
        worst_error: Of our implementations in float32, from the parity gate; None for none.

    Returns:
        The targets with what was measured.
    """
    found, n = Measured(rows), _LARGE
    both = 'forward+backward'
    targets = [
        Target(
            f'Gaussian {both}, N = {n}: faster than the reference',
            found.speedup('gaussian', n, 'reference', both), 3.0, at_most=False),
        Target(
            f'Gaussian {both}, N = {n}: extra memory',
            found.value('gaussian', n, 'auto', both, 'peak_mb'), 32.0, unit=' MB'),
    ]  # fmt: skip
    for metric in ('manhattan', 'euclidean'):
        op = f'decay_{metric}'
        targets += [
            Target(
                f'{metric} decay forward, N = {n}: time over SDPA with a prebuilt dense bias',
                found.ratio(op, n, 'auto', 'sdpa_bias', 'forward'), _NOISE),
            Target(
                f'{metric} decay forward, N = {n}: faster than the reference',
                found.speedup(op, n, 'reference', 'forward'), 4.0, at_most=False),
        ]  # fmt: skip
    for kind in ('forward', both):
        targets.append(
            Target(
                f'rows and columns of 56x56, {kind}: faster than the reference',
                found.speedup('rows_columns', n, 'reference', kind), 1.5, at_most=False)
        )  # fmt: skip
    ratios = {key: found.ratio(*key[:2], 'auto', 'reference', key[3]) for key in found.rows}
    worst = max((key for key in ratios if ratios[key]), key=lambda key: ratios[key], default=None)
    where = f': {worst[0]}, N = {worst[1]}, {worst[3]}' if worst else ''
    targets.append(
        Target(f'slowest case over the reference{where}', worst and ratios[worst], _NOISE)
    )
    return [*targets, _accuracy(worst_error)]


def gpu_targets(rows: Sequence[Row], worst_error: float | None) -> list[Target]:
    """List the targets on a GPU, which are for bf16; as `cpu_targets`."""
    found, both = Measured(rows), 'forward+backward'
    targets = []
    for n in found.sizes(1024):
        for op, kind, must, aim in (
            ('decay_manhattan', 'forward', 1.3, None),
            ('decay_euclidean', 'forward', 1.8, None),
            ('gaussian', 'forward', 1.8, 1.3),
            ('decay_manhattan', both, 1.4, None),
            ('gated', both, 1.5, None),
            ('gaussian', both, 1.8, None),
        ):
            ratio = found.ratio(op, n, 'auto', 'floor', kind)
            text = f'{op} {kind}, N = {n}: time over SDPA without bias'
            targets.append(Target(text, ratio, must, aim=aim))
        for op in ('decay_manhattan', 'decay_euclidean', 'gated', 'gaussian'):
            if n >= _LARGE:
                faster = found.speedup(op, n, 'sdpa_bias', both)
                text = f'{op} {both}, N = {n}: faster than SDPA with a prebuilt dense bias'
                targets.append(Target(text, faster, 1.3, at_most=False))
            if op in ('gated', 'gaussian'):
                faster = found.speedup(op, n, 'flex', both)
                text = f'{op} {both}, N = {n}: faster than FlexAttention'
                targets.append(Target(text, faster, 1.0, at_most=False))
            if n >= 16384:
                memory = found.value(op, n, 'auto', both, 'peak_mb')
                text = f'{op} {both}, N = {n}: extra memory'
                targets.append(Target(text, memory, 1024.0, unit=' MB'))
    return [*targets, _accuracy(worst_error)]


def _accuracy(worst_error: float | None) -> Target:
    text = 'fp32 error against float64, over the scale of the result'
    return Target(text, worst_error, 5e-6, unit='')


def summary(targets: Sequence[Target]) -> str:
    """Write targets as lines for people."""
    lines = []
    for target in targets:
        bounds = [
            f'{word} {target.bound(number)}'
            for word, number in (('must', target.must), ('aim', target.aim))
            if number is not None
        ]
        have = 'not measured' if target.measured is None else f'{target.measured:.3g}{target.unit}'
        word = {True: 'met', False: 'MISSED', None: ''}[target.met]
        lines.append(f'{word:<7}{target.text}: {have} ({", ".join(bounds)})')
    return '\n'.join(lines)


def write_json(path: Path, targets: Sequence[Target], where: dict[str, Any]) -> None:
    """Write targets and where they were measured."""
    items = [
        {
            'target': target.text,
            'must': target.bound(target.must),
            'aim': target.bound(target.aim),
            'measured': None if target.measured is None else float(f'{target.measured:.4g}'),
            'met': target.met,
        }
        for target in targets
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**where, 'targets': items}, indent=1) + '\n', encoding='utf-8')


# By device and dtype: what they are set for.
TARGETS: dict[tuple[str, str], Callable[[Sequence[Row], float | None], list[Target]]] = {
    ('cpu', 'fp32'): cpu_targets,
    ('cuda', 'bf16'): gpu_targets,
}
