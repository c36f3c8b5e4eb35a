"""Build MMEngine's runner; what a config got wrong becomes one message."""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import OPTIMIZERS, RUNNERS
from mmengine.runner import Runner
from torch import nn

from mmspatial.suggest import near

from .backbones import check_channels
from .errors import UserError

# What MMEngine's runner builds when it starts to train or to test, and from which settings.
_LATER = {
    'build_train_loop': 'train_cfg or train_dataloader',
    'build_optim_wrapper': 'optim_wrapper',
    'build_param_scheduler': 'param_scheduler',
    'build_val_loop': 'val_cfg, val_dataloader or val_evaluator',
    'build_test_loop': 'test_cfg, test_dataloader or test_evaluator',
}
# How MMEngine's parts refuse what they get, or say that an optional package is missing.
_MISTAKES = (KeyError, TypeError, ValueError, AssertionError, FileNotFoundError, ImportError)
# How MMEngine's data sets fail when nothing is left to load.
_EMPTY = 'need at least one array to concatenate'


def build_runner(cfg: Config) -> Runner:
    """Build the runner of a config.

    Args:
        cfg: A whole config with ``work_dir``.

    Returns:
        The runner, its model built. The parts that it builds later raise `UserError` as well.

    Raises:
        UserError: If a part of the config names a type or an argument that does not exist, or
            has a value that its type refuses.
    """
    # MMEngine's parts warn about each other's defaults, which nobody can mend in a config.
    warnings.filterwarnings('ignore', message='The draw is False')
    warnings.filterwarnings('ignore', message='.*save_param_scheduler')
    # The configs ask for it, and PyTorch does without where there is no GPU.
    warnings.filterwarnings('ignore', message="'pin_memory' argument")
    with blame_config('the config'):
        runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    check_outputs(runner.model, cfg.model)
    for name, part in _LATER.items():
        setattr(runner, name, _blaming(getattr(runner, name), part))
    return runner


def check_outputs(model: nn.Module, settings: ConfigDict) -> None:
    """Refuse a built model whose neck or heads do not fit its backbone.

    Args:
        model: The model, wrapped or not.
        settings: Its config, or that of the wrapper for test-time augmentation.

    Raises:
        UserError: If channel counts differ.
    """
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    channels = getattr(getattr(model, 'backbone', None), 'out_channels', None)
    if isinstance(channels, (list, tuple)):
        check_channels(settings.get('module', settings), channels)


def check_optimizer(cfg: Config) -> None:
    """Refuse an optimiser that does not exist, and mixed precision where it cannot work.

    Args:
        cfg: Config to train with.

    Raises:
        UserError: In these cases.
    """
    wrapper = cfg.get('optim_wrapper') or {}
    if 'Amp' in str(wrapper.get('type')) and get_device() == 'cpu':
        raise UserError(
            f'mixed precision ({wrapper.type}) needs a GPU, and there is none here: '
            f'train without it'
        )
    kind = (wrapper.get('optimizer') or {}).get('type')
    if isinstance(kind, str) and OPTIMIZERS.get(kind) is None:
        known = sorted(OPTIMIZERS.module_dict)
        raise UserError(
            f"no optimizer type '{kind}'{near(kind, known)}\nKnown: {', '.join(known)}."
        )


@contextmanager
def blame_config(part: str) -> Iterator[None]:
    """Turn what wrong settings cause while a part of a config is built into one message.

    Only errors from constructing something: those of other places are bugs, and keep their
    traceback. The message says where it was raised.

    Args:
        part: What is built, for the message.

    Raises:
        UserError: Instead of the error.
    """
    try:
        yield
    except _MISTAKES as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        last = traceback.extract_tb(error.__traceback__)[-1]
        factories = [frame for frame in frames if _is_factory(frame.f_code.co_filename)]
        if not (factories or 'mmengine' in Path(last.filename).parts):
            raise
        # The name of the type which was being made, where MMEngine's code still tells it.
        kind = factories[-1].f_locals.get('obj_type') if factories else None
        what = f'{kind} of {part}' if isinstance(kind, str) else part
        # KeyError's own text is quoted.
        text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
        first = text.strip().splitlines() or ['no details']
        if _EMPTY in first[0]:
            raise UserError(
                f'{what}: the data set is empty. Of the images that it names, none has one of the '
                f'classes (`metainfo`), or none is as large as `filter_cfg` asks for'
            ) from error
        place = f' ({Path(last.filename).name}, line {last.lineno})'
        raise UserError(
            f'{what} cannot be built: {type(error).__name__}: {first[0]}'
            f'{"" if _is_factory(last.filename) else place}'
        ) from error


def _is_factory(filename: str) -> bool:
    """Say whether code is where MMEngine calls a type with the settings of a config."""
    return filename.endswith('build_functions.py')


def _blaming(build: Callable[..., Any], part: str) -> Callable[..., Any]:
    @functools.wraps(build)
    def guarded(*args: Any) -> Any:
        with blame_config(part):
            return build(*args)

    return guarded
