"""How time and memory grow with the number of pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .records import Row

_KEY = ('part', 'backbone', 'form', 'pass', 'dtype', 'batch')
COLUMNS = (*_KEY, 'time_exponent', 'memory_exponent')


def fit_growth(rows: Sequence[Row]) -> list[Row]:
    """Fit powers of the number of pixels to time and memory of each backbone.

    Args:
        rows: Measurements.

    Returns:
        A row for each part of the run, backbone, form, pass, dtype and batch that was measured at
        several sizes.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in _KEY), []).append(row)
    fitted = []
    for key, group in groups.items():
        row = dict(zip(_KEY, key, strict=True))
        for name, column in (('time_exponent', 'min_ms'), ('memory_exponent', 'peak_mb')):
            points = [(r['size'] ** 2, r[column]) for r in group if r.get(column)]
            if len(points) > 1:
                row[name] = float(np.polyfit(*np.log(points).T, 1)[0])
        if 'time_exponent' in row:
            fitted.append(row)
    return fitted
