"""Swap a config's backbone; check that it exists and that the heads fit it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict

from mmspatial.registry import MODELS
from mmspatial.suggest import near

from .errors import UserError, warn


def swap_backbone(cfg: Config, name: str, folder: Path) -> None:
    """Do what editing the line of the backbone in the config would do.

    What the config sets on top of its backbone file stays, except for what the new file sets
    itself (the arch above all) and what the new class does not take, of which a line warns.
    Channel counts of the neck, or without a neck of the heads, follow the new backbone's.

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
    model = cfg.get('model')
    if not isinstance(model, dict) or not isinstance(model.get('backbone'), dict):
        raise UserError('--backbone needs a config with `model.backbone`')
    new, old = Config.fromfile(folder / f'{name}.py'), cfg.get('backbone')
    on_top = {k: v for k, v in model.backbone.items() if old.get(k) != v} if old else {}
    kept, dropped = _divide(on_top, new.backbone)
    swapped = ConfigDict({**new.backbone, **kept})
    if old:
        _check_strides(model, ConfigDict({**old, **kept}), swapped, name)
    if dropped:
        warn(
            f'--backbone {name}: what the config sets for its own backbone does not apply to '
            f'{new.backbone.type}: {", ".join(dropped)}'
        )
    model.backbone = swapped
    cfg.backbone, cfg.channels = new.backbone, new.channels

    # RetinaNet's configs leave the first stage out; a backbone's file lists the channels of all.
    outputs = [new.channels[i] for i in kept.get('out_indices', range(len(new.channels)))]
    for _, part, channels in _readers(model, outputs):
        part.in_channels = channels


def _check_strides(model: ConfigDict, old: ConfigDict, new: ConfigDict, name: str) -> None:
    """Refuse a pyramid where necks and heads read a plain ViT's maps, and the other way round."""
    heads = [head for _, head, _ in _readers(model, (0,) * 4)]
    several = model.get('neck') or any(not isinstance(h.get('in_index', -1), int) for h in heads)
    if not several or not str(old.get('type')).startswith('mmspatial.'):
        return
    with torch.device('meta'):
        old_strides, strides = (MODELS.build(cfg).out_strides for cfg in (old, new))
    if old_strides != strides:
        kinds = ['a plain ViT' if len(set(s)) == 1 else 'a pyramid' for s in (old_strides, strides)]
        raise UserError(
            f'--backbone {name}: it is {kinds[1]}, with outputs of strides '
            f'{", ".join(map(str, strides))}; necks and heads of this config are for {kinds[0]}, '
            f'of strides {", ".join(map(str, old_strides))}\n'
            f'Take a config for {kinds[1]}; the probes, which read one map, fit any backbone.'
        )


def check_backbone(cfg: Config) -> None:
    """Refuse a backbone of ours that does not exist before anything slow happens.

    Args:
        cfg: Config whose ``model.backbone`` is looked at.

    Raises:
        UserError: If its type or arch is unknown, with a list of what there is; or if the model
            is no group of settings.
    """
    model = cfg.get('model') or {}
    backbone = (model.get('backbone') or {}) if isinstance(model, dict) else None
    if not isinstance(backbone, dict):
        raise UserError('`model` and `model.backbone` of a config are groups of settings: dict(…)')
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


def check_channels(model: ConfigDict, channels: Sequence[int]) -> None:
    """Refuse a neck or heads that are set up for another backbone's outputs.

    Args:
        model: Settings of a whole model.
        channels: What its backbone really puts out.

    Raises:
        UserError: If they differ; the message has the setting to change.
    """
    for name, part, wanted in _readers(model, channels):
        given = part.get('in_channels', wanted)
        given = list(given) if isinstance(given, (list, tuple)) else given
        if given != wanted:
            value = str(wanted).replace(' ', '')
            raise UserError(
                f'the outputs of the backbone have {", ".join(map(str, channels))} channels, but '
                f'model.{name}.in_channels is {given}\n'
                f'Set model.{name}.in_channels={value}, or choose the backbone with --backbone '
                f'instead of its settings: then necks and heads follow.'
            )


def _readers(
    model: ConfigDict, channels: Sequence[int]
) -> Iterator[tuple[str, ConfigDict, int | list[int]]]:
    """Yield name, settings and right input channels of what reads the backbone's outputs."""
    if neck := model.get('neck'):
        is_list = isinstance(neck, (list, tuple))
        yield 'neck.0' if is_list else 'neck', neck[0] if is_list else neck, list(channels)
        return
    for key in ('decode_head', 'auxiliary_head'):
        heads = model.get(key) or []
        is_list = isinstance(heads, (list, tuple))
        for i, head in enumerate(heads if is_list else [heads]):
            name = f'{key}.{i}' if is_list else key
            index = head.get('in_index', -1)
            try:
                wanted = channels[index] if isinstance(index, int) else [channels[j] for j in index]
            except IndexError:
                raise UserError(
                    f'model.{name}.in_index is {index}; the backbone has {len(channels)} outputs'
                ) from None
            yield name, head, wanted


def _divide(on_top: dict[str, Any], new: ConfigDict) -> tuple[dict[str, Any], list[str]]:
    """Divide settings into those that a new backbone takes over, and the names of the others."""
    parameters = inspect.signature(MODELS.get(new.type)).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    taken = {parameter.name for parameter in parameters}
    kept = {
        key: value
        for key, value in on_top.items()
        if key not in {'type', 'arch', *new} and (takes_all or key in taken)
    }
    return kept, [key for key in on_top if key not in kept and key not in ('type', 'arch')]
