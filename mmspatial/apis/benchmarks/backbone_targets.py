"""What whole backbones must reach on a CPU, and whether the target run has shown it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .growth import fit_growth
from .parts import CONVNEXT, FORMS, OURS, SWIN
from .records import Row, cpu_info
from .targets import Target

# By part of `TARGET_RUN`: a backbone, how many times faster than as published it must be, the aim.
_FASTER = (
    ('forward-224', 'rmt_s', 1.25, 1.5),
    ('forward-224', 'rmt_b', 1.25, 1.5),
    ('forward-224', 'aliasfree_s', 2.0, 2.5),
    ('forward-512', 'rmt_t', 2.0, 3.0),
    ('forward-512', 'rmt_s', 1.5, 1.8),
    ('forward-512', 'rmt_b', 1.5, 1.8),
    ('forward-512', 'locatvit_b', 1.8, 2.2),
    ('forward-512', 'aliasfree_s', 2.0, 2.5),
    ('forward-1024', 'locatvit_b', 2.7, 3.2),
    ('compiled', 'rmt_s', 1.25, 1.5),
    ('compiled', 'rmt_b', 1.25, 1.5),
    ('train-512', 'rmt_s', 1.3, None),
    ('train-512', 'locatvit_b', 2.5, None),
    ('train-512', 'aliasfree_s', 1.7, None),
)
# A backbone and another one, over whose time its own must be at most this, and the aim.
_TIME = (
    ('forward-224', 'sdt_s', 'rmt_s', 1.15, None),
    ('forward-512', 'sdt_s', 'rmt_s', 1.6, None),
    ('forward-224', 'evt_s', SWIN, 1.0, None),
    ('forward-512', 'evt_s', SWIN, 1.0, None),
    ('forward-224', 'evt_s', 'rmt_s', 1.0, None),
    ('forward-512', 'evt_s', 'rmt_s', 1.0, None),
    ('forward-224', 'evt_s', CONVNEXT, None, 1.0),
    ('forward-512', 'evt_s', CONVNEXT, None, 1.0),
    ('forward-1024', 'locatvit_b', 'vit_b', 1.5, 1.3),
)
# Backbones whose memory over that of the published form must be at most this.
_WITH_PUBLISHED = ('rmt_t', 'rmt_s', 'rmt_b', 'locatvit_b', 'aliasfree_s')
_MEMORY = (
    ('forward-224', _WITH_PUBLISHED, 1.0),
    ('forward-512', _WITH_PUBLISHED, 1.0),
    ('train-512', ('rmt_s', 'locatvit_b', 'aliasfree_s'), 1.0),
    ('forward-1024', ('locatvit_b',), 0.5),
    ('train-1024', ('locatvit_b',), 0.5),
)
_LINEAR = ('evt_s', 'aliasfree_s')
_BF16_FLAGS = {'avx512_bf16', 'amx_bf16'}


class _Measured:
    """Rows of the target run in fp32 or another dtype, empty where there is none."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {(row['part'], row['backbone'], row['form'], row['dtype']): row for row in rows}

    def row(self, part: str, backbone: str, form: str = '', dtype: str = 'fp32') -> Row:
        return self.rows.get((part, backbone, form, dtype), {})

    def fastest(self, part: str, backbone: str) -> Row:
        """Return the fastest of the forms that are ours."""
        rows = [self.row(part, backbone, form) for form in FORMS if form != 'published']
        return min(rows, key=lambda row: row.get('min_ms', math.inf))


def backbone_targets(rows: Sequence[Row]) -> list[Target]:
    """List the targets on a CPU; times are the fastest of the rounds.

    Args:
        rows: As `bench_backbones` makes them in the target run.

    Returns:
        The targets with what was measured.
    """
    found = _Measured(rows)
    targets = []
    for part, backbone, must, aim in _FASTER:
        ours = found.fastest(part, backbone)
        ratio = _ratio(found.row(part, backbone, 'published'), ours)
        text = f'{part}, {_said(ours, backbone)}: faster than published'
        targets.append(Target(text, ratio, must, at_most=False, aim=aim))
    for part, backbone, other, must, aim in _TIME:
        ours, others = found.fastest(part, backbone), found.fastest(part, other)
        text = f'{part}, {_said(ours, backbone)}: time over {_said(others, other)}'
        targets.append(Target(text, _ratio(ours, others), must, aim=aim))
    # Not of the folded ones, which find tables that the others have left.
    for part, backbones, must in _MEMORY:
        for backbone in backbones:
            published = found.row(part, backbone, 'published')
            # One that does not fit into the machine's memory has none to compare with.
            if not published.get('reason'):
                ratio = _ratio(found.row(part, backbone), published, 'peak_mb')
                text = f"{part}, {backbone}: extra memory over published's"
                targets.append(Target(text, ratio, must))
    part, pair = 'forward-1024', ('locatvit_b', 'vit_b')
    ratio = _ratio(*(found.row(part, name) for name in pair), 'peak_mb')
    targets.append(Target(f"{part}, {pair[0]}: extra memory over {pair[1]}'s", ratio, 2.0))
    if _BF16_FLAGS & set(cpu_info('flags').split()):
        for backbone in OURS:
            times = (found.row('bf16', backbone, dtype=dtype) for dtype in ('bf16', 'fp32'))
            text = f'bf16 dot products, {backbone}: time of autocast over fp32'
            targets.append(Target(text, _ratio(*times), 1.0))
    growth = fit_growth([row for row in rows if row['part'] == 'growth'])
    for backbone in _LINEAR:
        fitted = next((row for row in growth if row['backbone'] == backbone), {})
        for what in ('time', 'memory'):
            text = f'growth, {backbone}: exponent of {what} in the number of pixels'
            targets.append(Target(text, fitted.get(f'{what}_exponent'), 1.1, unit=''))
    return targets


def _ratio(row: Row, other: Row, column: str = 'min_ms') -> float | None:
    """Return one row's number over another's, or None."""
    numbers = row.get(column), other.get(column)
    return numbers[0] / numbers[1] if all(numbers) else None


def _said(row: Row, backbone: str) -> str:
    return f'{backbone} {row.get("form", "")}'.strip()
