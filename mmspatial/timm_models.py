"""Every backbone and arch as a timm model; importing this module registers them.

Names are ``mmspatial_<backbone>_<arch>``, as in ``timm.create_model('mmspatial_evt_tiny')``.
A model is the backbone itself with its paper's classifier, and timm's interface on top, so that
weights have the same names there and here.

Options of `create_model` are those of `TimmModel`, of the backbone's class, and the fields of its
variant table (``img_size=384``, ``depth=6``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from timm.models import (
    PretrainedCfg,
    adapt_input_conv,
    build_model_with_cfg,
    generate_default_cfgs,
    register_model,
    resolve_pretrained_cfg,
)
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from mmspatial.checkpoints import load_weights
from mmspatial.compat.checkpoint import CheckpointError

from .models.builder import backbone_classes
from .models.layers.tokens import to_map
from .models.trunks.backbone import Backbone

__all__ = ['TimmModel']

_logger = logging.getLogger(__name__)
_FORMATS = ('NCHW', 'NHWC', 'NLC')


class TimmModel(Backbone):
    """What timm asks of a model, for any backbone; mixed into each of their classes.

    Args:
        arch: Name of a variant.
        num_classes: Number of logits; 0 for what the last layer would read.
        in_chans: Channels of the image.
        global_pool: None for the paper's classifier, ``''`` for tokens as they are (with
            ``num_classes=0``).
        drop_rate: Dropout in front of the last layer.
        **options: Arguments of the backbone's class, or fields of its variant table.

    Attributes:
        num_features: Channels of the last stage.
        head_hidden_size: Channels that the last layer reads.
        num_prefix_tokens: Class token and registers in front of the patches.
        feature_info: timm's table of the stages.
    """

    def __init__(
        self,
        arch: str,
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        **options: Any,
    ) -> None:
        row = self.variants[arch]
        fields = {key: options.pop(key) for key in row.keys() & options.keys() - {'drop_path_rate'}}
        super().__init__(
            arch={**row, **fields} if fields else arch,
            in_channels=in_chans,
            num_classes=num_classes or 1,
            out_indices=(-1,),
            **options,
        )
        self.in_chans = in_chans
        self.num_features = self.stage_channels[-1]
        self.head_hidden_size = self.head.fc.in_features
        self.num_prefix_tokens = getattr(self.embed, 'num_prefix', 0)
        self.feature_info = [
            dict(num_chs=channels, reduction=stride, module=f'stages.{i}')
            for i, (channels, stride) in enumerate(
                zip(self.stage_channels, self.stage_strides, strict=True)
            )
        ]
        self.head_drop = nn.Dropout(drop_rate)
        self._set_classes(num_classes, global_pool)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(B, in_chans, h, w)`` of any size to logits ``(B, num_classes)``."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last stage's tokens ``(B, P + H·W, C)``, normed where the head is not."""
        tokens = self._run(x)[1]
        return tokens if self.norm is None else self.norm(tokens)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Map the tokens of `forward_features` to logits, or to what the last layer reads."""
        if self.head is None or self.global_pool == '':
            return x
        x = self.head_drop(self.head.pool(x))
        return x if pre_logits else self.head.fc(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return outputs of stages (blocks of a plain ViT), without prefix tokens.

        Args:
            x: Images ``(B, in_chans, h, w)``.
            indices: Which stages; a number for so many of the last, None for all.
            norm: Whether the final norm is on every output that has its width.
            stop_early: Whether to leave out what follows the last of them.
            output_fmt: ``'NCHW'``, ``'NHWC'`` or ``'NLC'``.
            intermediates_only: Whether to return the outputs alone.

        Returns:
            The outputs, after what `forward_features` returns unless ``intermediates_only``.

        Raises:
            ValueError: If there is no such format.
        """
        if output_fmt not in _FORMATS:
            raise ValueError(f'output_fmt={output_fmt!r}: expected one of {", ".join(_FORMATS)}')
        chosen, last = feature_take_indices(len(self.stages), indices)
        final = nn.Identity() if self.norm is None else self.norm
        outputs = []
        tokens, grid = self.embed(x)
        for i in range(last + 1 if stop_early else len(self.stages)):
            tokens, grid = self._run_stage(i, tokens, grid)
            if i in chosen:
                has_norm = norm and self.stage_channels[i] == self.num_features
                out = to_map(final(tokens) if has_norm else tokens, grid)  # (B, C, H, W)
                if output_fmt != 'NCHW':
                    out = out.permute(0, 2, 3, 1)  # (B, H, W, C)
                outputs.append(out.flatten(1, 2) if output_fmt == 'NLC' else out)
        return outputs if intermediates_only else (final(tokens), outputs)

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Remove what `forward_intermediates` does not need; return the indices, all positive."""
        chosen, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        self.downsamples = self.downsamples[:last]
        if prune_norm:
            self.norm = None
        if prune_head:
            self.head, self.num_classes = None, 0
        return chosen

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer by a fresh one; arguments as in the constructor."""
        weight = next(self.parameters())
        self.head.fc = nn.Linear(self.head_hidden_size, num_classes or 1).to(weight)
        nn.init.trunc_normal_(self.head.fc.weight, std=0.02)
        nn.init.zeros_(self.head.fc.bias)
        self._set_classes(num_classes, global_pool)

    def _set_classes(self, num_classes: int, global_pool: str | None) -> None:
        if global_pool not in (None, ''):
            raise ValueError(
                f"global_pool={global_pool!r}: expected None, for the paper's classifier, or ''"
            )
        if global_pool == '' and num_classes:
            raise ValueError(f"global_pool='' needs num_classes=0, not {num_classes}")
        self.num_classes, self.global_pool = num_classes, global_pool
        if num_classes == 0:
            self.head.fc = nn.Identity()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Say whether training recomputes blocks in the backward pass to save memory."""
        for stage in self.stages:
            stage.with_cp = enable

    def no_weight_decay(self) -> set[str]:
        """Name all parameters but the weights of layers: tables, tokens, gates, scales, biases."""
        return {name for name, _ in self.named_parameters() if not name.endswith('weight')}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns which order parameters from input to output, for layer decay."""
        block = r'^stages\.(\d+)' if coarse else r'^stages\.(\d+)\.blocks\.(\d+)'
        with_previous = (99999,)
        return dict(
            stem=r'^embed\.',
            blocks=[
                (block, None),
                (r'^downsamples\.(\d+)', with_previous),
                (r'^norm\.', with_previous),
            ],
        )

    def fit_weights(self, state: dict[str, Tensor], prefix: str) -> None:
        """Fit the first convolution of a checkpoint to other channels of the image, as timm does.

        Args:
            state: Weights by our names; changed in place.
            prefix: Of this module's names.
        """
        name = next(n for n, module in self.named_modules() if isinstance(module, nn.Conv2d))
        source = state.get(f'{prefix}{name}.weight')
        if source is not None and source.shape[1] == 3 != self.in_chans:
            state[f'{prefix}{name}.weight'] = adapt_input_conv(self.in_chans, source)


def _register(name: str, cls: type[TimmModel], arch: str) -> None:
    """Make the function that timm builds an arch by, and register it."""

    def build(
        pretrained: bool = False,
        pretrained_cfg: PretrainedCfg | dict[str, Any] | str | None = None,
        pretrained_cfg_overlay: dict[str, Any] | None = None,
        cache_dir: str | None = None,
        **options: Any,
    ) -> nn.Module:
        cfg = resolve_pretrained_cfg(name, pretrained_cfg, pretrained_cfg_overlay)
        source = cfg.state_dict or cfg.file
        if pretrained and source is None:
            raise CheckpointError(
                f'there are no hosted weights of {name}. To load a file of yours, say '
                "pretrained=True, pretrained_cfg_overlay=dict(file='weights.pth'), which takes "
                "any that mmspatial.load_weights does; or checkpoint_path='weights.pth' for one "
                'that timm saved from this model.'
            )

        def make(**options: Any) -> TimmModel:
            model = cls(arch, **options)
            if pretrained:
                _logger.info('%s: %s', name, load_weights(model, source).summary())
            return model

        return build_model_with_cfg(
            make, name, False, pretrained_cfg=cfg, feature_cfg=dict(out_indices=4,
            feature_cls='getter'), **options,
        )  # fmt: skip

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f'Build {cls.__bases__[1].__name__} with arch {arch!r} as a timm model.'
    globals()[name] = register_model(build)


def _variants() -> dict[str, tuple[type[TimmModel], str]]:
    """Return class and arch of each timm name."""
    found = {}
    for short, backbone in backbone_classes().items():
        # A class of its own in this module, so that models can be pickled.
        cls = type(f'Timm{backbone.__name__}', (TimmModel, backbone), {'__module__': __name__})
        globals()[cls.__name__] = cls
        found |= {f'mmspatial_{short}_{arch}': (cls, arch) for arch in backbone.variants}
    return found


_VARIANTS = _variants()
# timm's word for what it knows of pretraining; there are no weights to point to.
default_cfgs = generate_default_cfgs(
    {name: dict(crop_pct=0.9, classifier='head.fc', license='apache-2.0') for name in _VARIANTS}
)
for _name, (_cls, _arch) in _VARIANTS.items():
    _register(_name, _cls, _arch)
