"""`--fuse`: test and predict with a model that is folded for inference."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from mmspatial.models.fuse import fuse_for_inference

from .errors import UserError, warn


class FuseHook(Hook):
    """Folds the runner's model once its weights are there."""

    # After MMEngine's `EMAHook`, which exchanges the weights at the same moment.
    priority = 'VERY_LOW'

    def before_test_epoch(self, runner: Runner) -> None:
        """Replace the model, or what a wrapper holds of it."""
        runner.model = fuse(runner.model)


def fuse(model: nn.Module) -> nn.Module:
    """Fold a model by `mmspatial.fuse_for_inference`.

    Args:
        model: A segmentor or detector with its final weights, with or without what distributes it
            and what augments at test time around it.

    Returns:
        The folded copy, in the same wrapper.

    Raises:
        UserError: If the model cannot be folded.
    """
    if isinstance(model, MMDistributedDataParallel):
        model.module = fuse(model.module)
        return model
    name = type(model).__name__
    if is_model_wrapper(model):
        raise UserError(f'--fuse needs all weights in every process, and {name} divides them')
    try:
        fused = fuse_for_inference(model)
    except Exception as error:
        reason = f'{type(error).__name__}: {error}'
        raise UserError(f'{name} does not take --fuse, run without it ({reason})') from error
    if fused.state_dict().keys() == model.state_dict().keys():
        warn(f'--fuse: {name} has nothing to fold, so it stays as it is')
    return fused
