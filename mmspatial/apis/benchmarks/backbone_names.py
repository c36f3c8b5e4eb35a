"""From the words of a command line to backbones: ours, timm's, and those of OpenMMLab's configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from mmspatial import build_backbone, list_backbones
from mmspatial.suggest import near

from ..configs import config_folder, find_config, read_config
from ..errors import UserError, require_openmmlab


@dataclass(frozen=True)
class Named:
    """A backbone that can be built.

    Attributes:
        name: As on the command line.
        build: Builds it, without weights of a checkpoint, for square images of a size.
        arch: Of a backbone of ours, else None.
    """

    name: str
    build: Callable[[int], nn.Module]
    arch: Any = None


class _TimmFeatures(nn.Module):
    """What a timm model computes in front of its classifier."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the last features, in whatever layout the model has."""
        return self.model.forward_features(x)


def find_backbone(name: str) -> Named:
    """Find a backbone by the name that a user gives.

    Args:
        name: ``rmt_s`` (a file of ``configs/_base_/backbones``), ``RMT:small`` (class and arch),
            ``timm:NAME``, or a config with ``model.backbone``: its path, or the name of one that we
            ship.

    Returns:
        The backbone; it has not been built yet, so that its options may still be wrong.

    Raises:
        UserError: If there is none, with similar names.
    """
    if name.startswith('timm:'):
        return _find_timm(name)
    bases = {file.stem: file for file in (config_folder() / '_base_' / 'backbones').glob('*.py')}
    if name in bases:
        return _ours(name, Config.fromfile(bases[name]).backbone)
    cls, colon, arch = name.partition(':')
    if colon and not Path(name).exists():
        known = {key.lower(): key for key in list_backbones()}
        if cls.lower() not in known:
            raise UserError(f"no backbone '{cls}'. Known: {', '.join(known.values())}, and timm.")
        cls = known[cls.lower()]
        if arch not in list_backbones()[cls]:
            raise UserError(
                f"{cls} has no arch '{arch}'{near(arch, list_backbones()[cls]) or '.'} "
                f'Known: {", ".join(list_backbones()[cls])}.'
            )
        return _ours(name, {'type': cls, 'arch': arch})
    try:
        find_config(name)
    except UserError:
        if name.endswith('.py') or '/' in name:
            raise  # It is about a config.
        raise UserError(
            f"no backbone '{name}'{near(name, bases)}\nGive one of {', '.join(sorted(bases))}; "
            'CLASS:arch such as LocAtViT:base; timm:NAME; or a config with model.backbone.'
        ) from None
    return _from_config(name)


def _ours(name: str, settings: dict[str, Any]) -> Named:
    options = {key: value for key, value in settings.items() if key != 'type'}
    return Named(
        name, lambda size: build_backbone(settings['type'], **options), options.get('arch', 'tiny')
    )


def _find_timm(name: str) -> Named:
    import timm

    model = name.removeprefix('timm:')
    if not timm.is_model(model):
        raise UserError(f"timm has no model '{model}'{near(model, timm.list_models())}")

    def build(size: int) -> nn.Module:
        # Models that are tied to a size take it, the others do not know the word.
        try:
            built = timm.create_model(model, num_classes=0, img_size=size)
        except TypeError:
            built = timm.create_model(model, num_classes=0)
        return _TimmFeatures(built)

    return Named(name, build)


def _from_config(name: str) -> Named:
    cfg = read_config(name)
    model = cfg.get('model')
    settings = model.get('backbone') if isinstance(model, dict) else None
    if not isinstance(settings, dict) or 'type' not in settings:
        raise UserError(f"config '{name}' has no model.backbone")
    scope = cfg.get('default_scope') or 'mmseg'
    require_openmmlab(scope)

    def build(size: int) -> nn.Module:
        with DefaultScope.overwrite_default_scope(scope):
            return revert_sync_batchnorm(MODELS.build(settings))

    ours = str(settings['type']).startswith('mmspatial.')
    return Named(Path(name).stem, build, settings.get('arch', 'tiny') if ours else None)
