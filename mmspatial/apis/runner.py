"""Build MMEngine's runner; what a config got wrong becomes one message."""

from __future__ import annotations

import re
import warnings

from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from .errors import UserError


def build_runner(cfg: Config) -> Runner:
    """Build the runner of a config.

    Args:
        cfg: A whole config with ``work_dir``.

    Returns:
        The runner, its model built.

    Raises:
        UserError: If a part of the config names a type or an argument that does not exist.
    """
    # MMEngine's parts warn about each other's defaults, which nobody can mend in a config.
    warnings.filterwarnings('ignore', message='The draw is False')
    warnings.filterwarnings('ignore', message='.*save_param_scheduler')
    try:
        return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    except (KeyError, TypeError, ValueError) as error:
        text = str(error)
        mistake = r'is not in the .* registry|unexpected keyword argument|missing .* argument'
        if re.search(mistake, text) or isinstance(error, ValueError):
            raise UserError(f'the config cannot be built: {text}') from error
        raise
