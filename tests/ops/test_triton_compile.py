"""What the Triton kernels take of GPUs that this machine need not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

COMPILE = Path(__file__).with_name('compile_kernels.py')
# What a block may have of shared memory, by compute capability; 8.9 stands for all the rest.
SHARED = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}


def case(op: str, capability: int, **changes: Any) -> dict[str, Any]:
    """Describe a launch, by default one that needs more registers than most."""
    usual = dict(
        dtype='bfloat16', width=64, length=3141, mask=True, prefix=5, metric='euclidean'
    )  # fmt: skip
    return {**usual, 'op': op, 'capability': capability, **changes}


def plain(op: str, capability: int, **changes: Any) -> dict[str, Any]:
    """Describe a launch that has nothing to mask."""
    usual = dict(length=3136, mask=False, prefix=0, metric='manhattan')
    return case(op, capability, **{**usual, **changes})


def assert_fits(cases: Sequence[dict[str, Any]], cache: Path) -> None:
    """Compile, where the interpreter has not been asked for, and look for what is too much."""
    environment = {k: v for k, v in os.environ.items() if k != 'TRITON_INTERPRET'}
    done = subprocess.run(
        [sys.executable, COMPILE], input=json.dumps(cases), text=True, stdout=subprocess.PIPE,
        env={**environment, 'TRITON_CACHE_DIR': str(cache)}, check=True,
    )  # fmt: skip
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    # The forward kernel, and all gradients in one kernel or in two.
    assert 2 * len(cases) <= len(kernels) <= 3 * len(cases)
    for kernel in kernels:
        assert kernel['registers'] <= 255, kernel
        assert kernel['stack'] == kernel['local'] == 0, kernel
        assert kernel['shared'] <= SHARED[kernel['capability']], kernel
        tensor_cores = kernel['capability'] == 90 and kernel['dtype'] != 'float32'
        assert kernel['wgmma'] == tensor_cores, kernel


def test_kernels_fit(tmp_path: Path) -> None:
    cases = [
        plain('decay', 90),
        case('gated', 90, width=32, length=56, dtype='float16'),
        case('gaussian', 80, width=96),
        case('gated', 89, width=48, dtype='float32'),
    ]
    assert_fits(cases, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize('capability', SHARED)
@pytest.mark.parametrize('op', ['decay', 'gated', 'gaussian'])
def test_all_kernels_fit(op: str, capability: int, tmp_path: Path) -> None:
    widths = (16, 32, 48, 64, 96, 128)
    cases = [
        make(op, capability, width=width, dtype=dtype, **length)
        for width in widths
        for dtype in ('bfloat16', 'float32')
        for make in (case, plain)
        for length in ({}, {'length': 56 if dtype == 'bfloat16' else 14})
    ]
    assert_fits(cases, tmp_path)
