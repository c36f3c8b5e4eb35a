"""Rows of measurements: where and when they were made, and the CSV file that holds them."""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import mmspatial

Row = dict[str, Any]


def device_name(device: torch.device) -> str:
    """Return the model of the processor or GPU."""
    if device.type == 'cuda':
        return torch.cuda.get_device_name(device)
    return cpu_info('model name') or platform.processor() or platform.machine()


def cpu_info(field: str) -> str:
    """Return what Linux says of the first processor in a field; empty where it says nothing."""
    try:
        lines = Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:
        return ''
    found = (line.partition(':')[2].strip() for line in lines if line.startswith(field))
    return next(found, '')


def short_name(device: torch.device) -> str:
    """Return a word for file names: ``cpu``, or a GPU's model such as ``nvidia-h200``."""
    if device.type == 'cpu':
        return 'cpu'
    return re.sub(r'[^a-z0-9]+', '-', device_name(device).lower()).strip('-')


def circumstances(device: torch.device, threads: int) -> Row:
    """Return the columns that all rows of a run share."""
    try:
        triton = importlib.metadata.version('triton')
    except importlib.metadata.PackageNotFoundError:
        triton = ''
    return {
        'device': device_name(device),
        'threads': threads if device.type == 'cpu' else '',
        'torch': torch.__version__,
        'triton': triton,
        'mmspatial': mmspatial.__version__,
        'date': datetime.date.today().isoformat(),
    }


def describe(where: Row) -> str:
    """Write `circumstances` as a line for people."""
    threads = where['threads'] and f'{where["threads"]} thread{"s" * (where["threads"] > 1)}'
    words = (where['device'], threads, f'torch {where["torch"]}', where['date'])
    return ', '.join(word for word in words if word)


def add_speedups(rows: Sequence[Row], key: str, over: dict[str, str]) -> None:
    """Say of each row how many times faster it is than others of the same measurement.

    Args:
        rows: Those of one interleaved measurement, changed in place; compared by ``min_ms``.
        key: Column with the name of what was measured.
        over: New columns, and the names in ``key`` that they compare with.
    """
    best = {row[key]: row['min_ms'] for row in rows if row.get('min_ms')}
    for row in rows:
        for column, name in over.items():
            if row.get('min_ms') and name in best:
                row[column] = best[name] / row['min_ms']


def reason_of(error: Exception) -> str:
    """Say in a line why something cannot run, without paths of this machine."""
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return 'out of memory'
    text = ' '.join(str(error).split()) or type(error).__name__
    text = re.sub(r'(?<![\w.])/\S+', '…', text)
    return text if len(text) <= 160 else text[:159] + '…'


def print_rows(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print some columns of rows as a table, the last one as wide as it is."""
    cells = [list(columns), *([_cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(str(line[i])) for line in cells) for i in range(len(columns) - 1)]
    for line in cells:
        first, *middle = (str(cell) for cell in line[:-1])
        words = [first.ljust(widths[0])]
        words += [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=True)]
        print('  '.join([*words, str(line[-1])]).rstrip(), flush=True)


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows under a line with the columns' names; a missing value is an empty cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, columns, restval='', lineterminator='\n')
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f'{value:.4g}'
    return '' if value is None else value
