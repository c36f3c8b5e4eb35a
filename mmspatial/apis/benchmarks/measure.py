"""Time and peak memory of calls, on a CPU or a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from ..errors import UserError

Run = Callable[[], object]
Name = TypeVar('Name', bound=Hashable)
MB = 2**20
# A measurement calls as often as fills this time, so that the clock's steps do not matter.
_FILL_MS = 20.0
_FILL_QUICK_MS = 0.5
# A call that takes so long is not repeated for a better guess of how often it fills that time, and
# rounds that have taken so long are the last ones.
_LONG_MS = 1000.0
_ENOUGH_MS = 90e3
# Numbers of options in GNU's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@contextlib.contextmanager
def measuring(device: torch.device) -> Iterator[None]:
    """Prepare this process for measurements, and undo that at the end.

    The garbage collector, which runs before each of them, is spared all that is there already. On
    a CPU what does not fit into the free memory fails with an error that can be reported, where
    Linux would end the process.
    """
    gc.collect()
    gc.freeze()
    limit = _limit_memory() if device.type == 'cpu' else None
    try:
        yield
    finally:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, limit)
        gc.unfreeze()


def _limit_memory() -> tuple[int, int] | None:
    """Let this process allocate no more than what is free; return the limit that there was."""
    try:
        lines = Path('/proc/meminfo').read_text().splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith('MemAvailable:'))
        used = _status('VmData')
    except (OSError, StopIteration):
        return None
    old = resource.getrlimit(resource.RLIMIT_DATA)
    most = round((used * 1024 + 0.9 * free) * 1024)
    resource.setrlimit(resource.RLIMIT_DATA, (most, old[1]))
    return old


class Clock:
    """The clock of a device.

    On a CPU with one thread it is the process's own time, which other processes on the machine
    do not add to; with several threads it is wall-clock time, since theirs would be summed. On a
    GPU it is the device's, between events.

    Args:
        device: Where calls run.
        threads: Of the CPU.
        quick: Whether a single call is enough, for trials.
    """

    def __init__(self, device: torch.device, threads: int = 1, *, quick: bool = False) -> None:
        self.device = device
        self.name = 'cuda' if device.type == 'cuda' else 'process' if threads == 1 else 'wall'
        self.fill_ms = _FILL_QUICK_MS if quick else _FILL_MS

    def time(self, run: Run, repeats: int = 1) -> float:
        """Return the milliseconds of a call, as the mean of ``repeats``."""
        if self.name == 'cuda':
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(self.device)
            start.record()
            for _ in range(repeats):
                run()
            end.record()
            torch.cuda.synchronize(self.device)
            return start.elapsed_time(end) / repeats
        now = time.process_time if self.name == 'process' else time.perf_counter
        begin = now()
        for _ in range(repeats):
            run()
        return (now() - begin) * 1e3 / repeats


def find_device(name: str | None) -> torch.device:
    """Find a device by its name, or the first GPU if there is one and else the CPU.

    A GPU becomes PyTorch's current one, to which events belong.

    Raises:
        UserError: If it is neither a CPU nor a GPU that is there.
    """
    name = name or ('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"no device '{name}': give cpu, cuda or cuda:N") from None
    if device.type == 'cpu':
        return device
    if device.type != 'cuda':
        raise UserError(f"times are measured on cpu and cuda, not on '{name}'")
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise UserError(f"no device '{name}': PyTorch sees {count} GPU(s)")
    torch.cuda.set_device(device)
    return device


def interleave(runs: Mapping[Name, Run], clock: Clock, rounds: int) -> dict[Name, list[float]]:
    """Time several calls in turn, so that whatever slows the machine meets all of them.

    Each is called once or twice before, to warm up. No round begins once those before have taken
    90 seconds of the clock, so that slow calls have fewer rounds, at the least one.

    Args:
        runs: What to call, by name.
        clock: See `Clock`.
        rounds: How often each is measured at most.

    Returns:
        Milliseconds per call of each round.
    """
    repeats = {}
    for name, run in runs.items():
        once = clock.time(run)
        if once < _LONG_MS:
            once = clock.time(run)
        repeats[name] = min(max(math.ceil(clock.fill_ms / max(once, 1e-3)), 1), 1000)
    times: dict[Name, list[float]] = {name: [] for name in runs}
    names = list(runs)
    spent = 0.0
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in names:
                times[name].append(clock.time(runs[name], repeats[name]))
                spent += times[name][-1] * repeats[name]
            if spent > _ENOUGH_MS:
                break
            # None always follows the same one, whose memory it would find warm.
            names.reverse()
    finally:
        gc.enable()
    return times


def quantiles(times: list[float]) -> dict[str, float]:
    """Summarise times as columns ``p20_ms, p50_ms, p80_ms, min_ms``."""
    p20, p50, p80 = np.percentile(times, (20, 50, 80))
    return {'p20_ms': p20, 'p50_ms': p50, 'p80_ms': p80, 'min_ms': min(times)}


def peak_memory(run: Run, device: torch.device) -> float | None:
    """Measure by how much a call raises the memory in use at its worst moment.

    All that it allocates counts: results, gradients, what is saved for the backward pass, buffers
    inside custom ops and libraries. Nothing counts that is there before: inputs, weights, and the
    tables that an earlier call has left.

    On a CPU it is the resident memory that the kernel counts, since no hook inside PyTorch sees
    all buffers: the C library gives back what it holds in reserve and is told to keep nothing
    larger than 64 KB, the kernel's high-water mark is reset (``/proc/self/clear_refs``), and the
    call raises it. On a GPU it is the caching allocator's peak.

    Args:
        run: What to call.
        device: Where it runs.

    Returns:
        MB; None on a CPU without Linux's counters.
    """
    gc.collect()
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / MB
    with _nothing_in_reserve():
        before = _resident_memory(reset_peak=True)
        run()
        return None if before is None else max(_status('VmHWM') - before, 0.0)


def kept_memory(run: Run, device: torch.device) -> float | None:
    """Measure the memory that a call leaves in use: tables that it caches, if it is the first.

    Args:
        run: What to call; its result is thrown away.
        device: Where it runs.

    Returns:
        MB; None on a CPU without Linux's counters.
    """
    with _nothing_in_reserve():
        before = _in_use(device)
        run()
        after = _in_use(device)
    return None if before is None or after is None else max(after - before, 0.0)


@contextlib.contextmanager
def _nothing_in_reserve() -> Iterator[None]:
    """Let the C library return memory to the kernel at once, as far as it is GNU's.

    Times are not to be measured like this. Afterwards its thresholds are those that it comes to
    by itself once a large tensor has been freed.
    """
    set_option = getattr(ctypes.CDLL(None), 'mallopt', None)
    if set_option is None:
        yield
        return
    set_option(_M_MMAP_THRESHOLD, 2**16)
    try:
        yield
    finally:
        set_option(_M_MMAP_THRESHOLD, 2**25)
        set_option(_M_TRIM_THRESHOLD, 2**26)


def _in_use(device: torch.device) -> float | None:
    gc.collect()
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device) / MB
    return _resident_memory(reset_peak=False)


def _resident_memory(*, reset_peak: bool) -> float | None:
    """Return the MB in use, without what is free inside the C library's heap."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        if reset_peak:
            Path('/proc/self/clear_refs').write_text('5')
        return _status('VmRSS')
    except (OSError, AttributeError):
        return None


def _status(field: str) -> float:
    """Return a field of the kernel's report on this process, in MB."""
    for line in Path(f'/proc/{os.getpid()}/status').read_text().splitlines():
        if line.startswith(field + ':'):
            return int(line.split()[1]) / 1024
    raise OSError(f'the kernel does not report {field}')
