"""Read checkpoints without executing what they hold, MMEngine's own included.

Without this file, resuming and testing from a MMEngine checkpoint fails upstream under
PyTorch >= 2.6, whose safe ``torch.load`` refuses ``HistoryBuffer`` and numpy's arrays; and the
OneDL forks fall back to an unsafe load, which runs any code that a file brings along.

A MMEngine checkpoint is weights, plain values, the log histories of its message hub, and the
states of optimisers and schedulers. The allow-list below is what these pickle, and no more.
"""

from __future__ import annotations

import functools
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np
import safetensors.torch
import torch

TRUST_VARIABLE = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
MapLocation = str | torch.device | dict[str, str] | Callable[..., Any] | None


class CheckpointError(RuntimeError):
    """A checkpoint file that cannot be read, with the reason and what to do."""


def load_file(path: str | os.PathLike[str], map_location: MapLocation = 'cpu') -> object:
    """Read a checkpoint file safely: PyTorch's, MMEngine's or a ``.safetensors`` file.

    Nothing that the file holds is executed, unless the environment variable
    ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD`` is set to 1 (which our tools' ``--trust-checkpoint``
    does).

    Args:
        path: The file; ``~`` is the home folder. An address (``https://…``) is downloaded once.
        map_location: Where tensors go, as in ``torch.load``; None keeps their own device.

    Returns:
        What was saved: most often a dict, of tensors or with a key ``state_dict``.

    Raises:
        CheckpointError: If the file is missing, damaged, no checkpoint, or unsafe.
    """
    if is_url(path):
        return load_url(os.fspath(path), map_location=map_location)
    path = Path(path).expanduser()
    if not path.is_file():
        raise CheckpointError(f"Checkpoint '{path}' does not exist or is no file.")
    with _clear_errors(path):
        if path.suffix == '.safetensors':
            device = map_location if isinstance(map_location, str | torch.device) else 'cpu'
            return safetensors.torch.load_file(path, device=str(device))
        return _torch_load(path, map_location)


def make_safe(runner_checkpoint: ModuleType) -> None:
    """Have MMEngine read every checkpoint as ``load_file`` does.

    Args:
        runner_checkpoint: The module ``mmengine.runner.checkpoint``.
    """
    runner_checkpoint.CheckpointLoader.register_scheme('', load_from_local, force=True)
    # Its loaders for other places call these two names. PyTorch's own `load_url` is unsafe by
    # default; `_safe_torch_load` exists in the forks only, and falls back to unsafe loading.
    runner_checkpoint.load_url = load_url
    if hasattr(runner_checkpoint, '_safe_torch_load'):
        runner_checkpoint._safe_torch_load = _torch_load


def load_from_local(filename: str, map_location: MapLocation = None) -> object:
    """Read a local file for MMEngine, which logs the end of this function's name."""
    return load_file(filename, map_location)


def load_url(
    url: str,
    model_dir: str | None = None,
    map_location: MapLocation = None,
    progress: bool = True,
) -> object:
    """Download a checkpoint into PyTorch's cache, once, and read it safely.

    Args:
        url: Where it is.
        model_dir: Cache folder, PyTorch's own by default.
        map_location: Where tensors go, as in ``torch.load``.
        progress: Whether to show a progress bar.

    Returns:
        What was saved.

    Raises:
        CheckpointError: If it cannot be downloaded, or what came is no checkpoint, or unsafe.
    """
    folder = Path(model_dir or Path(torch.hub.get_dir(), 'checkpoints'))
    file = folder / (Path(urlsplit(url).path).name or 'checkpoint')
    if not file.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(file), progress=progress)
        except (OSError, HTTPException, ValueError) as error:
            raise CheckpointError(
                f"Checkpoint '{url}' cannot be downloaded ({type(error).__name__}: {error}). "
                f'Download it by other means and give the path of the file.'
            ) from error
    return load_file(file, map_location)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Say whether a checkpoint is given by an address."""
    return os.fspath(path).startswith(('http://', 'https://'))


def is_trusted() -> bool:
    """Say whether the user set PyTorch's variable for files that may execute code."""
    return os.getenv(TRUST_VARIABLE, '0').lower() in ('1', 'y', 'yes', 'true')


def allow_mmengine() -> None:
    """Add to PyTorch's safe globals what MMEngine's own values consist of."""
    # Numbers and text only: no object arrays, whose elements can be anything.
    codes = '?efdFDSU' + np.typecodes['AllInteger']
    allowed: list[Any] = [np.ndarray, np.dtype, *(type(np.dtype(code)) for code in codes)]
    for rebuild in (np.empty(0).__reduce__()[0], np.float64().__reduce__()[0]):
        # numpy 1 and 2 keep these two functions in different places.
        for home in ('numpy.core.multiarray', 'numpy._core.multiarray'):
            allowed.append(_alias(rebuild, home, rebuild.__name__))
    if find_spec('mmengine'):
        allowed += [*_methods_in_checkpoints(), _alias(_named_method, 'builtins', 'getattr')]
    torch.serialization.add_safe_globals(allowed)


@functools.cache
def _alias(function: Callable[..., Any], module: str, name: str) -> Callable[..., Any]:
    """Wrap a function so that it bears the name which a pickle calls it by.

    From 2.6 on PyTorch takes pairs of function and name as well.
    """

    def alias(*args: Any) -> Any:
        return function(*args)

    alias.__module__ = module
    alias.__name__ = alias.__qualname__ = name
    return alias


def _methods_in_checkpoints() -> dict[type, tuple[str, ...]]:
    """Return the MMEngine classes that checkpoints name, and which of their methods they name."""
    from mmengine.logging.history_buffer import HistoryBuffer
    from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler

    return {
        HistoryBuffer: ('min', 'max', 'mean', 'current'),
        OneCycleParamScheduler: ('_annealing_cos', '_annealing_linear'),
    }


def _named_method(owner: object, name: object) -> object:
    """Do the one thing that checkpoints need ``getattr`` for: name a method.

    Histories and one-cycle schedules hold their own methods as values, which are pickled as
    ``getattr(HistoryBuffer, 'mean')``. Python's own ``getattr`` would hand out everything.
    """
    for known, names in _methods_in_checkpoints().items():
        if owner is known and name in names:
            return getattr(known, name)
    raise pickle.UnpicklingError(f'GLOBAL getattr({owner!r}, {name!r}) was not allowed')


def _torch_load(
    file: str | os.PathLike[str] | IO[bytes],
    map_location: MapLocation = None,
    weights_only: bool | None = None,
) -> object:
    """Call ``torch.load`` safely; an unsafe ``weights_only`` from the caller is ignored."""
    allow_mmengine()
    with warnings.catch_warnings():
        # A file of another kind ends in our own error; torch's guess before it says less.
        warnings.filterwarnings('ignore', 'Detected pickle protocol')
        return torch.load(file, map_location=map_location, weights_only=not is_trusted())


@contextmanager
def _clear_errors(source: Path | str) -> Iterator[None]:
    """Turn whatever a damaged or hostile file causes into one ``CheckpointError``."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(f"Checkpoint '{source}' {_complaint(source, error)}") from error


def _complaint(source: Path | str, error: Exception) -> str:
    """Say what is wrong with a file, from the error that it caused."""
    if isinstance(error.__context__, pickle.UnpicklingError):
        error = error.__context__  # torch wraps it in advice that is not for our users
    text = ' '.join(str(error).split()) or 'no details'
    refused = re.search(r'GLOBAL (.+?) (?:was not|whose module)', text)
    if refused or (isinstance(error, pickle.UnpicklingError) and _is_archive(source)):
        what = f"'{refused[1]}'" if refused else f'objects of other kinds ({text})'
        return (
            f'holds {what}, which could execute code when loaded, so nothing was loaded. If you '
            'trust whoever made the file, use --trust-checkpoint with our tools, or set '
            f'{TRUST_VARIABLE}=1.'
        )
    reason = f'{type(error).__name__}: {text.split(". ")[0]}'
    if not isinstance(source, Path) or _is_archive(source) or isinstance(error, PermissionError):
        return f'cannot be loaded ({reason}).'
    size = f'{source.stat().st_size:,} bytes'
    return f'({size}) is truncated or no checkpoint at all ({reason}). Copy or download it again.'


def _is_archive(source: Path | str) -> bool:
    """Say whether a file is complete and has the format of ``torch.save``, a zip archive."""
    if not (isinstance(source, Path) and zipfile.is_zipfile(source)):
        return False
    with zipfile.ZipFile(source) as archive:
        return any(name.endswith('/data.pkl') for name in archive.namelist())
