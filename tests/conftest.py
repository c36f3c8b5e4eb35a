from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

# Where there is no GPU, kernels run in Triton's interpreter; it is chosen as they are imported.
if not torch.cuda.is_available():
    os.environ.setdefault('TRITON_INTERPRET', '1')

# The folder of a tool that runs as a script, where each finds what it begins with; at the end,
# since `tools/test.py` has the name of a module of Python's.
sys.path.append(str(Path(__file__).resolve().parents[1] / 'tools'))


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    """Results must not depend on the machine's cores or on the order of tests."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
