"""What `tools/collect_env.py` does: say what a report of a problem has to say of the machine."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mmspatial.compat.distributions import check_openmmlab, installed_distributions, installed_set

_SETS = {
    'onedl': 'OneDL forks',
    'openmmlab': 'upstream',
    'both': 'OneDL forks and upstream, mixed',
    'none': 'not installed',
}
_OPENCV = (
    'opencv-python',
    'opencv-python-headless',
    'opencv-contrib-python',
    'opencv-contrib-python-headless',
)


def collect_env() -> str:
    """Describe the environment, whatever is missing or broken in it.

    Returns:
        A line for each fact; no path and no name of the machine or of its user is in it.
    """
    facts = [
        ('system', _system),
        ('torch', _torch),
        *((name, lambda name=name: _module(name)) for name in ('torchvision', 'timm', 'mmspatial')),
        ('OpenMMLab', _openmmlab),
        *((name, lambda name=name: _module(name)) for name in ('mmengine', 'mmcv')),
        ('mmcv ops', _mmcv_ops),
        *((name, lambda name=name: _module(name)) for name in ('mmseg', 'mmdet')),
        ('OpenCV', _opencv),
        ('triton', _triton),
        ('CPU', _cpu),
        ('GPU', _gpus),
    ]
    lines = [f'{name:<12} {_guarded(fact)}' for name, fact in facts]
    if impl := os.environ.get('MMSPATIAL_IMPL'):
        lines.append(f'{"impl":<12} MMSPATIAL_IMPL={impl}')
    return '\n'.join(lines)


def _guarded(fact: Callable[[], str]) -> str:
    """Return a fact, or what stands in its way: nothing may stop the others."""
    try:
        return fact()
    except Exception as error:
        return f'cannot be found out: {_words(error)}'


def _words(error: Exception) -> str:
    """Return the type and the first line of an error."""
    lines = str(error).strip().splitlines() or ['no details']
    return f'{type(error).__name__}: {lines[0]}'


def _module(name: str) -> str:
    """Import a package, for that it is installed does not say that it works."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        return 'not installed' if error.name == name else f'cannot be imported: {_words(error)}'
    except Exception as error:
        return f'cannot be imported: {_words(error)}'
    if getattr(module, '__file__', None) is None:
        return 'cannot be imported: only an empty folder is left of it'
    return getattr(module, '__version__', 'unknown version')


def _system() -> str:
    return f'Python {platform.python_version()}, {platform.system()} {platform.machine()}'


def _torch() -> str:
    found = _module('torch')
    if not found[0].isdigit():
        return found
    import torch

    for name, built_for in (('CUDA', torch.version.cuda), ('ROCm', torch.version.hip)):
        if built_for:
            found += f', built for {name} {built_for}'
    return found


def _openmmlab() -> str:
    """Name the distributions, and what is wrong with them."""
    found = ', '.join(
        f'{name} {number}'
        for distributions in installed_distributions().values()
        for name, number in distributions.items()
    )
    text = _SETS[installed_set()] + (f': {found}' if found else '')
    try:
        check_openmmlab(need=['mmengine', 'mmcv'])
    except RuntimeError as error:
        return f'{text}\n{"":<12} {error}'
    return text


def _mmcv_ops() -> str:
    """Say where mmcv's compiled ops come from."""
    if 'imported' in (found := _module('mmcv')) or found == 'not installed':
        return 'none without mmcv'
    try:
        ops = importlib.import_module('mmcv._ext')
    except ImportError as error:
        return f'compiled, but cannot be loaded: {_words(error)}'
    if Path(ops.__file__).name == 'mmcv_ops.py':
        return 'not compiled; mmspatial serves those that it needs, through torchvision'
    return f'compiled, with {ops.get_compiler_version()}'


def _opencv() -> str:
    found = _module('cv2')
    installed = []
    for name in _OPENCV:
        try:
            installed.append(f'{name} {version(name)}')
        except PackageNotFoundError:
            continue
    return found + (f' ({", ".join(installed)})' if installed else '')


def _triton() -> str:
    """Say whether the Triton kernels run here, by running one."""
    found = _module('triton')
    if not found[0].isdigit():
        return found
    import torch

    from mmspatial.ops import decay_attention
    from mmspatial.ops._flash import is_interpreted

    if is_interpreted():
        return f'{found}, in its interpreter only (TRITON_INTERPRET)'
    q = torch.zeros(1, 1, 16, 16, device='cuda' if torch.cuda.is_available() else 'cpu')
    try:
        decay_attention(q, q, q, -torch.ones(1, device=q.device), (4, 4), impl='triton')
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return f'{found}, not usable: {reason[0]}'
    return f'{found}, usable'


def _cpu() -> str:
    import torch

    info = Path('/proc/cpuinfo')
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    name = names[0] if names else platform.processor() or platform.machine()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    return (
        f'{name} ({torch.backends.cpu.get_cpu_capability()}), {usable} usable cores, '
        f'{torch.get_num_threads()} used by PyTorch'
    )


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return 'none that PyTorch can use'
    found = []
    for i in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(i)
        found.append(f'{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {gpu.major}.{gpu.minor}')
    return '; '.join(found)
