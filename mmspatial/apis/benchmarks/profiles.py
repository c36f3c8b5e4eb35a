"""Where the time and the memory of a call go, by operator."""

from __future__ import annotations

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from .measure import MB, Run
from .records import Row

COLUMNS = ('operator', 'calls', 'ms', 'share', 'allocated_mb')
_SUMS = ('calls', 'ms', 'allocated_mb')
# What the profiler puts in front of operators of the backward pass, and where it counts memory
# that is allocated or freed outside of all of them.
_BACKWARD, _OUTSIDE = 'autograd::engine::evaluate_function: ', '[memory]'


def profile_operators(run: Run, device: torch.device, most: int = 8) -> list[Row]:
    """Profile a call by the operators that it calls itself, with all that those call in turn.

    Times are the wall clock's, or a GPU's, and those of short operators are partly the profiler's
    own. Memory is what is left of an operator's allocations when it returns: its results and what
    it saves for the backward pass.

    Args:
        run: What to call; it should be warm.
        device: Where it runs.
        most: How many operators have a row of their own.

    Returns:
        A row for each of the operators that take longest, and one for all others.
    """
    on_gpu = device.type == 'cuda'
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, profile_memory=True) as trace:
        run()
    found: dict[str, Row] = {}
    for event in trace.events():
        on_top = event.cpu_parent is None and event.device_type == DeviceType.CPU
        if not on_top or event.name == _OUTSIDE:
            continue
        name = event.name.removeprefix(_BACKWARD)
        row = found.setdefault(name, {'operator': name, **dict.fromkeys(_SUMS, 0)})
        left = event.device_memory_usage if on_gpu else event.cpu_memory_usage
        row['calls'] += 1
        row['ms'] += (event.device_time_total if on_gpu else event.cpu_time_total) / 1e3
        row['allocated_mb'] += max(left, 0) / MB
    rows = sorted(found.values(), key=lambda row: row['ms'], reverse=True)
    total = sum(row['ms'] for row in rows)
    if rest := rows[most:]:
        others = {name: sum(row[name] for row in rest) for name in _SUMS}
        rows = [*rows[:most], {'operator': 'others', **others}]
    return [{**row, 'share': row['ms'] / total} for row in rows]
