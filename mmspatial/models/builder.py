"""Backbones without a config."""

from __future__ import annotations

from typing import Any

from mmspatial.suggest import near

from . import backbones
from .trunks.backbone import Backbone


def backbone_classes() -> dict[str, type[Backbone]]:
    """Return the backbones' classes by their short names: those of their files, ``'evt'``."""
    classes = (getattr(backbones, name) for name in backbones.__all__)
    return {cls.__module__.rpartition('.')[2]: cls for cls in classes}


def list_backbones() -> dict[str, list[str]]:
    """List the architectures of every backbone.

    Returns:
        Names for `build_backbone`, and for each the values of ``arch``.

    Example:
        >>> list_backbones()['LocAtViT']
        ['tiny', 'small', 'base']
    """
    return {name: list(getattr(backbones, name).variants) for name in backbones.__all__}


def build_backbone(name: str, **options: Any) -> Backbone:
    """Build a backbone and load the weights that its ``init_cfg`` names.

    Args:
        name: ``'EVT'``, ``'RMT'``, …, with or without ``'mmspatial.'``.
        **options: Arguments of the backbone's class.

    Returns:
        The backbone, in training mode.

    Raises:
        ValueError: If there is no such backbone; the message lists those that exist.

    Example:
        >>> build_backbone('RMT', arch='small').out_channels
        (64, 128, 256, 512)
    """
    name = name.removeprefix('mmspatial.')
    if name not in backbones.__all__:
        raise ValueError(
            f'no backbone {name!r}{near(name, backbones.__all__) or "."} '
            f'Known: {", ".join(backbones.__all__)}.'
        )
    # Not through the registry, which looks in the scope of the last runner first.
    model = getattr(backbones, name)(**options)
    model.init_weights()
    return model
