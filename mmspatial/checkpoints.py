"""Weights from the files that people have into our backbones, with a report.

The key schemes of official releases are tables here; models know only their own names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .compat.checkpoint import CheckpointError, load_file

StateDict = dict[str, Tensor]

MIN_MATCHED = 0.9
# In this order: an EMA copy is taken only where there is nothing else.
_CONTAINERS = ('model', 'state_dict', 'model_ema', 'state_dict_ema', 'module')
_PREFIXES = ('module.', 'backbone.')


@dataclass(frozen=True)
class KeyScheme:
    """How one release names its weights.

    Attributes:
        name: For reports.
        mark: Pattern of a key that only this scheme has.
        renames: Patterns and replacements; the first that matches a key's start applies.
        derived: Pattern of keys which nobody needs: tables that are computed, extra heads.
        merged: Pattern with a group ``part``, one of ``parts``, for weights which ours keep in
            one tensor, and our name for it; None where there are none.
        parts: The parts in the order in which ours has them.
    """

    name: str
    mark: str
    renames: tuple[tuple[str, str], ...]
    derived: str
    merged: tuple[str, str] | None = None
    parts: tuple[str, ...] = ()


_BLOCK = r'layers\.(\d+)\.blocks\.(\d+)\.'
_OUR_BLOCK = r'stages.\1.blocks.\2.'
RMT_SCHEME = KeyScheme(
    name='RMT release',
    mark=r'layers\.0\.blocks\.0\.retention\.q_proj\.weight',
    renames=(
        (r'patch_embed\.proj\.', 'embed.'),
        (_BLOCK + r'retention_layer_norm\.', _OUR_BLOCK + 'norm1.'),
        (_BLOCK + r'retention\.lepe\.conv\.', _OUR_BLOCK + 'attn.lepe.'),
        (_BLOCK + r'retention\.out_proj\.', _OUR_BLOCK + 'attn.proj.'),
        (_BLOCK + r'final_layer_norm\.', _OUR_BLOCK + 'norm2.'),
        (_BLOCK + r'ffn\.dwconv\.conv\.', _OUR_BLOCK + 'ffn.dwconv.'),
        (_BLOCK + r'ffn\.', _OUR_BLOCK + 'ffn.'),
        (_BLOCK + r'pos\.conv\.', _OUR_BLOCK + 'cpe.'),
        (_BLOCK + r'gamma_([12])$', _OUR_BLOCK + r'ls\3.gamma'),
        (r'layers\.(\d+)\.downsample\.reduction\.', r'downsamples.\1.conv.'),
        (r'layers\.(\d+)\.downsample\.norm\.', r'downsamples.\1.norm.'),
        (r'extra_norms\.', 'out_norms.'),
        (r'proj\.', 'head.proj.'),
        (r'norm\.', 'head.norm.'),
        (r'head\.', 'head.fc.'),
    ),
    derived=r'Relpos\.|layers\.\d+\.Relpos\.|aux_head\.',
    merged=(_BLOCK + r'retention\.(?P<part>[qkv])_proj\.', _OUR_BLOCK + 'attn.qkv.'),
    parts=('q', 'k', 'v'),
)
# Both with or without LocAt's gates.
TIMM_SWIN_SCHEME = KeyScheme(
    name='timm Swin',
    mark=r'layers\.0\.blocks\.0\.attn\.relative_position_bias_table$',
    renames=(
        (r'patch_embed\.', 'embed.'),
        (_BLOCK + r'attn\.gaug\.log_(var|alpha)\.', _OUR_BLOCK + r'attn.prior.to_\3.'),
        (_BLOCK + r'attn\.relative_position_bias_table$', _OUR_BLOCK + 'attn.bias_table'),
        (_BLOCK + r'mlp\.', _OUR_BLOCK + 'ffn.'),
        (_BLOCK, _OUR_BLOCK),
        # timm puts patch merging in front of a stage, not behind the one before.
        *((rf'layers\.{s + 1}\.downsample\.', f'downsamples.{s}.') for s in range(8)),
        (r'head\.(fc\.)?', 'head.fc.'),
    ),
    derived=r'.*\.(relative_position_index|attn_mask)$',
)
TIMM_VIT_SCHEME = KeyScheme(
    name='timm ViT',
    mark=r'patch_embed\.proj\.weight$',
    renames=(
        (r'patch_embed\.', 'embed.patches.'),
        (r'(cls_token|pos_embed)$', r'embed.\1'),
        (r'reg_token$', 'embed.registers'),
        (r'blocks\.(\d+)\.attn\.gaug\.log_(var|alpha)\.', r'stages.\1.blocks.0.attn.prior.to_\2.'),
        (r'blocks\.(\d+)\.mlp\.', r'stages.\1.blocks.0.ffn.'),
        (r'blocks\.(\d+)\.gamma_([12])$', r'stages.\1.blocks.0.ls\2.gamma'),
        (r'blocks\.(\d+)\.', r'stages.\1.blocks.0.'),
        (r'head\.(fc\.)?', 'head.fc.'),
    ),
    derived=r'dist_token$|head_dist\.',
)
ALIAS_FREE_SCHEME = KeyScheme(
    name='Alias-Free ViT release',
    mark=r'blocks\.0\.local_mp\.norm\.weight$',
    renames=(
        (r'patch_embed\.proj\.', 'embed.'),
        (r'blocks\.(\d+)\.local_mp\.', r'stages.\1.blocks.0.lpi.'),
        (r'blocks\.(\d+)\.mlp\.', r'stages.\1.blocks.0.ffn.'),
        (r'blocks\.(\d+)\.gamma([123])$', r'stages.\1.blocks.0.ls\2.gamma'),
        (r'blocks\.(\d+)\.', r'stages.\1.blocks.0.'),
        (r'cls_token$', 'head.cls_token'),
        (r'cls_attn_blocks\.(\d+)\.mlp\.', r'head.blocks.\1.ffn.'),
        (r'cls_attn_blocks\.(\d+)\.gamma([12])$', r'head.blocks.\1.ls\2.gamma'),
        (r'cls_attn_blocks\.(\d+)\.', r'head.blocks.\1.'),
        (r'norm\.', 'head.norm.'),
        (r'head\.', 'head.fc.'),
    ),
    derived=r'(?!)',
)
# The first whose mark is there: timm's Swin has the mark of its ViT too.
SCHEMES = (RMT_SCHEME, TIMM_SWIN_SCHEME, TIMM_VIT_SCHEME, ALIAS_FREE_SCHEME)


@dataclass
class LoadReport:
    """What became of each weight.

    Attributes:
        scheme: The key scheme that the source had.
        matched: Keys of the model that were loaded.
        missing: Keys of the model that keep their values, with the reason where a tensor of
            that name had another shape.
        unexpected: Keys of the source that mean nothing to this model.
        skipped: Keys of the source that are known not to be needed: classifiers, derived
            tables, stages and norms of outputs that the model does not have.
        fraction: Share of the model's parameters, by number of elements, that were loaded.
    """

    scheme: str
    matched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    fraction: float = 0.0

    def summary(self) -> str:
        """Say in one line what was loaded, naming the first few keys that were not."""
        text = f'{self.fraction:.1%} of the parameters loaded ({self.scheme} keys)'
        for word in ('missing', 'unexpected', 'skipped'):
            keys = getattr(self, word)
            if keys:
                text += (
                    f'; {len(keys)} {word}: {", ".join(keys[:3])}{", …" if len(keys) > 3 else ""}'
                )
        return text


def load_weights(
    model: nn.Module, source: str | os.PathLike[str] | Mapping[str, Any]
) -> LoadReport:
    """Load weights from an official release, from our own files, or from a trained segmentor.

    Containers (``model``, ``state_dict``, their EMA copies, ``module``) are opened, ``module.``
    and ``backbone.`` stripped, and official names translated. Nothing of a file is executed.

    Args:
        model: A backbone of ours.
        source: A file (``.pth``, ``.pt``, ``.safetensors``) or a state dict.

    Returns:
        The report.

    Raises:
        CheckpointError: If the file cannot be read, or holds under 90 % of the model's
            parameters; then the model is left as it was.
    """
    name = 'the state dict' if isinstance(source, Mapping) else f"'{os.fspath(source)}'"
    content = source if isinstance(source, Mapping) else load_file(source)
    state, report = _translate(_unwrap(content, name))

    for prefix, module in model.named_modules():
        if hasattr(module, 'fit_weights'):
            module.fit_weights(state, f'{prefix}.' if prefix else '')

    target = model.state_dict()
    loaded: StateDict = {}
    for key, value in state.items():
        if key not in target:
            known = key.startswith(('head.', 'norm.', 'stages.', 'downsamples.', 'out_norms.'))
            (report.skipped if known else report.unexpected).append(key)
        elif target[key].shape != value.shape:
            shapes = f'{tuple(value.shape)}, the model has {tuple(target[key].shape)}'
            report.missing.append(f'{key} (it is {shapes})')
        else:
            loaded[key] = value
    report.matched = list(loaded)
    mismatched = {key.partition(' ')[0] for key in report.missing}
    report.missing += [key for key in target if key not in loaded and key not in mismatched]

    sizes = {key: parameter.numel() for key, parameter in model.named_parameters()}
    report.fraction = sum(sizes.get(key, 0) for key in loaded) / max(sum(sizes.values()), 1)
    if report.fraction < MIN_MATCHED:
        raise CheckpointError(
            f'{name} does not fit {type(model).__name__}: {report.summary()}. Nothing was loaded; '
            f'check that the file belongs to this backbone and arch.'
        )
    model.load_state_dict(loaded, strict=False)
    return report


def _unwrap(content: object, name: str) -> StateDict:
    """Open containers and strip prefixes until keys are those of a backbone."""
    while isinstance(content, Mapping):
        inner = next((content[c] for c in _CONTAINERS if isinstance(content.get(c), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise CheckpointError(f'{name} holds a {type(content).__name__}, not a dict of weights.')
    state = {key: value for key, value in content.items() if isinstance(value, Tensor)}
    if not state:
        raise CheckpointError(f'{name} holds no weights: {", ".join(map(str, list(content)[:5]))}')
    while prefix := next((p for p in _PREFIXES if any(k.startswith(p) for k in state)), None):
        state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    return state


def _translate(state: StateDict) -> tuple[StateDict, LoadReport]:
    """Rename official keys to ours."""
    scheme = next((s for s in SCHEMES if any(re.match(s.mark, key) for key in state)), None)
    if scheme is None:
        return state, LoadReport('our own')
    report, ours = LoadReport(scheme.name), {}
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        if re.match(scheme.derived, key):
            report.skipped.append(key)
        elif scheme.merged and (match := re.match(scheme.merged[0], key)):
            merged = match.expand(scheme.merged[1]) + key[match.end() :]
            parts.setdefault(merged, {})[match['part']] = value
        else:
            new = _rename(key, scheme)
            # Official layer scales are (1, 1, 1, C).
            ours[new] = value.flatten() if new.endswith('.gamma') else value
    for key, values in parts.items():
        if len(values) == len(scheme.parts):
            ours[key] = torch.cat([values[part] for part in scheme.parts])
    return ours, report


def _rename(key: str, scheme: KeyScheme) -> str:
    """Return our name for a key, or the key itself where the scheme has no rule."""
    for pattern, replacement in scheme.renames:
        if match := re.match(pattern, key):
            return match.expand(replacement) + key[match.end() :]
    return key
