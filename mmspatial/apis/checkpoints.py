"""Which checkpoint to continue from, and whether it belongs to the model at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import nn

from mmspatial.compat.checkpoint import CheckpointError, load_file

from .errors import UserError, warn


def read_checkpoint(path: str) -> dict[str, Any]:
    """Read a checkpoint of a whole model, safely.

    Args:
        path: A file that MMEngine wrote, or one with a bare state dict.

    Returns:
        The checkpoint; it has ``state_dict``.

    Raises:
        CheckpointError: If the file cannot be read, or holds no state dict.
    """
    checkpoint = load_file(path)
    if isinstance(checkpoint, dict) and checkpoint:
        if 'state_dict' in checkpoint:
            return checkpoint
        if all(torch.is_tensor(value) for value in checkpoint.values()):
            return {'state_dict': checkpoint}
    raise CheckpointError(f"Checkpoint '{path}' holds no weights of a model.")


def find_last(work_dir: str) -> tuple[str, dict[str, Any]] | None:
    """Find the newest checkpoint of a work dir that can be read.

    The one that MMEngine noted last comes first. A process that was killed while writing leaves
    a truncated file; then the next newest is taken, and a line says so.

    Args:
        work_dir: Where the checkpoints are.

    Returns:
        Path and content, or None if there is no checkpoint.

    Raises:
        CheckpointError: If there are some, but none can be read; it speaks of the newest.
    """
    folder = Path(work_dir)
    steps = {
        file: int(found[1])
        for file in folder.glob('*.pth')
        if (found := re.fullmatch(r'(?:iter|epoch)_(\d+)', file.stem))
    }
    candidates = sorted(steps, key=lambda file: -steps[file])
    note = folder / 'last_checkpoint'
    if note.is_file() and (name := note.read_text().strip()):
        # By its name only: the work dir may have been moved.
        noted = folder / Path(name).name
        candidates.sort(key=lambda file: file != noted)
    first_error: CheckpointError | None = None
    for file in candidates:
        try:
            checkpoint = read_checkpoint(str(file))
        except CheckpointError as error:
            first_error = first_error or error
            print(f'{error} Trying the one before it.')
        else:
            return str(file), checkpoint
    if first_error is not None:
        raise first_error
    return None


def check_matches(
    model: nn.Module,
    state_dict: Mapping[str, torch.Tensor],
    path: str,
    to_start: bool = False,
) -> None:
    """Refuse weights that leave parts of a model as they are.

    MMEngine loads what fits and goes on with the rest at random.

    Args:
        model: The model, wrapped or not.
        state_dict: The weights.
        path: Where they are from, for the message.
        to_start: Whether a training only starts from the weights: then all of the backbone's
            must be there, and a line says what else starts at random, such as the last layers
            of a model for other classes.

    Raises:
        UserError: If entries are missing or have other shapes; the message names the first ones.
    """
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    weights = {key.removeprefix('module.'): value for key, value in state_dict.items()}
    # Older PyTorch's checkpoints may lack this counter; nothing depends on it.
    wanted = {k: v for k, v in model.state_dict().items() if 'num_batches_tracked' not in k}
    missing = [key for key in wanted if key not in weights]
    changed = [
        f'{key} {tuple(weights[key].shape)}, not {tuple(value.shape)}'
        for key, value in wanted.items()
        if key in weights and weights[key].shape != value.shape
    ]
    unexpected = [key for key in weights if key not in wanted and 'num_batches' not in key]
    bad = [*missing, *(text.partition(' ')[0] for text in changed)]
    to_start = to_start and any(key.startswith('backbone.') for key in wanted)
    if not bad or (to_start and not any(key.startswith('backbone.') for key in bad)):
        if bad:
            parts = sorted({'.'.join(key.split('.')[:2]) for key in bad})
            warn(
                f"'{path}' has the backbone; {len(bad)} of {len(wanted)} weights are not in it or "
                f'have other shapes, and start at random: those of {", ".join(parts)}'
            )
        return
    lines = [f"checkpoint '{path}' is of another model:"]
    for what, keys in (
        ('missing in the file', missing),
        ('of another shape', changed),
        ('not in this model', unexpected),
    ):
        if keys:
            more = f', and {len(keys) - 3} more' if len(keys) > 3 else ''
            lines.append(f'  {what}: {"; ".join(keys[:3])}{more}')
    lines.append(
        'For weights of a backbone alone, use --backbone-weights.'
        if to_start
        else 'Use the config (and --backbone) with which the checkpoint was trained.'
    )
    raise UserError('\n'.join(lines))
