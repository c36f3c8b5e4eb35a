"""Swap a config's backbone, and check that the one it names exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from mmspatial.suggest import near

from .errors import UserError


def swap_backbone(cfg: Config, name: str, folder: Path) -> None:
    """Do what editing the line of the backbone in the config would do.

    What the config sets on top of its backbone file stays. Channel counts of the neck, or
    without a neck of the heads, follow the new backbone's.

    Args:
        cfg: Config to change in place.
        name: A file in `folder` without its suffix, such as ``rmt_s``.
        folder: Where the backbone files are.

    Raises:
        UserError: If there is no such backbone, or the config has no model.
    """
    known = sorted(file.stem for file in folder.glob('*.py'))
    if name not in known:
        raise UserError(f"no backbone '{name}'{near(name, known)}\nKnown: {', '.join(known)}.")
    if 'model' not in cfg or 'backbone' not in cfg.model:
        raise UserError('--backbone needs a config with `model.backbone`')
    new = Config.fromfile(folder / f'{name}.py')
    old, model = cfg.get('backbone'), cfg.model
    on_top = {k: v for k, v in model.backbone.items() if old.get(k) != v} if old else {}
    model.backbone = ConfigDict({**new.backbone, **on_top})
    cfg.backbone, cfg.channels = new.backbone, new.channels

    if neck := model.get('neck'):
        first = neck[0] if isinstance(neck, list) else neck
        first.in_channels = list(new.channels)
        return
    for key in ('decode_head', 'auxiliary_head'):
        heads = model.get(key) or []
        for head in heads if isinstance(heads, list) else [heads]:
            head.in_channels = _follow(head, new.channels)


def check_backbone(cfg: Config) -> None:
    """Refuse a backbone of ours that does not exist before anything slow happens.

    Args:
        cfg: Config whose ``model.backbone`` is looked at.

    Raises:
        UserError: If its type or arch is unknown; the message lists what there is.
    """
    backbone: dict[str, Any] = (cfg.get('model') or {}).get('backbone') or {}
    scope, _, name = str(backbone.get('type', '')).rpartition('.')
    if scope != 'mmspatial':
        return
    from mmspatial import list_backbones

    known = list_backbones()
    if name not in known:
        types = [f'mmspatial.{key}' for key in known]
        raise UserError(
            f"no backbone type 'mmspatial.{name}'{near(f'mmspatial.{name}', types, cutoff=0.8)}\n"
            f'Known: {", ".join(types)}.'
        )
    arch = backbone.get('arch')
    if isinstance(arch, str) and arch not in known[name]:
        raise UserError(
            f"backbone mmspatial.{name} has no arch '{arch}'{near(arch, known[name])}\n"
            f'Known: {", ".join(known[name])}.'
        )


def _follow(head: ConfigDict, channels: list[int]) -> int | list[int]:
    """Return the input channels of a head which reads the backbone's outputs itself."""
    index = head.get('in_index', -1)
    return channels[index] if isinstance(index, int) else [channels[i] for i in index]
