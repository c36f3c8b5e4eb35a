"""Compile the attention kernels for GPUs that this machine need not have, and measure them.

A script of its own, for `test_triton_compile.py`: where the interpreter was asked for, kernels
cannot be compiled. It takes cases as JSON from its input and writes a line of JSON per kernel.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from mmspatial.ops import _flash

NVIDIA_TOOLS = Path(triton.__file__).parent / 'backends/nvidia/bin'


class Driver:
    """What Triton asks of a GPU before it compiles, answered without one."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget('cuda', self.capability, 32)


def launch(op: str, inputs: tuple[Any, ...], grad: torch.Tensor, metric: str) -> None:
    """Call forward and backward of an op, as the public function would."""
    q, k, v, positions, mask, prefix = inputs
    batch, groups, heads, length, _ = q.shape
    gate = torch.zeros(batch, groups, heads, length - prefix)
    module = importlib.import_module(f'mmspatial.ops.{op}_attention.triton')
    params, options = {
        'decay': ((torch.zeros(heads),), (metric,)),
        'gated': ((gate, torch.zeros(heads)), ()),
        'gaussian': ((gate, torch.zeros(*gate.shape, 2)), (-8.0, 0.1)),
    }[op]
    tensors = q, k, v, *params, positions, mask
    rest = None, *options, 0.125, prefix
    out, lse = module.forward(*tensors, *rest)
    module.backward(grad, *tensors, out, lse, *rest, True)


def compiled(case: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Compile what a case launches, which does not run; return names and kernels."""
    kernels = []
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, warmup: bool, **kwargs: Any) -> None:
        kernel = run(self, *args, warmup=True, **kwargs)
        kernels.append((self.fn.__name__, kernel))

    dtype = getattr(torch, case['dtype'])
    # As attention layers make them: views of the product of one projection, heads side by side.
    qkv = torch.zeros(1, 4, case['length'], 3, 2, case['width'], dtype=dtype)
    q, k, v = qkv.permute(3, 0, 1, 4, 2, 5)
    mask = torch.ones(1, 1, case['length'], dtype=torch.bool) if case['mask'] else None
    positions = torch.zeros(1, case['length'] - case['prefix'], 2)
    triton.runtime.driver.set_active(Driver(case['capability']))
    name = {80: 'ampere', 90: 'hopper'}.get(case['capability'], 'other')
    with (
        mock.patch.object(JITFunction, 'run', compile_only),
        mock.patch.object(_flash, 'architecture', return_value=name),
    ):
        grad = torch.zeros_like(v)
        launch(case['op'], (q, k, v, positions, mask, case['prefix']), grad, case['metric'])
    return kernels


def resources(kernel: Any) -> dict[str, Any]:
    """Read what a compiled kernel takes of a multiprocessor, per thread or block."""
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(kernel.asm['cubin'])
        file.flush()
        text = subprocess.run(
            [NVIDIA_TOOLS / 'cuobjdump', '-res-usage', file.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    usage = dict(re.findall(r'\b(REG|STACK|LOCAL):(\d+)', text))
    return dict(
        registers=int(usage['REG']), stack=int(usage['STACK']), local=int(usage['LOCAL']),
        shared=kernel.metadata.shared, wgmma='wgmma' in kernel.asm['ptx'],
        warps=kernel.metadata.num_warps,
    )  # fmt: skip


if __name__ == '__main__':
    for case in json.load(sys.stdin):
        for name, kernel in compiled(case):
            print(json.dumps({**case, 'kernel': name, **resources(kernel)}), flush=True)
