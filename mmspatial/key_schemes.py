"""By which names releases keep weights, and by which we do: tables that are read in both ways.

Models know only their own names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

StateDict = dict[str, Tensor]
Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class KeyScheme:
    """How one release names its weights.

    Rows are pairs of their name and ours, in which ``{x}`` stands for a number. A name that ends
    with a dot stands for all that begin so. Of the rows that fit a key the longest applies.

    Attributes:
        title: For reports.
        mark: A key that only this scheme has.
        rows: Names, both ways.
        older: Further names of theirs, which are read but not written.
        unused: Pattern of keys that ours does without: tables that are computed, extra heads.
        merged: Row for weights which ours keep in one tensor; their name has a ``{part}``, one of
            ``parts``. None where there are none.
        parts: The parts in the order in which ours has them.
        spread: Row for a tensor of theirs with all blocks in its second axis, which ours keep
            with each block ``{i}``; None where there is none.
        scale_shape: Shape of a layer scale in their files.
    """

    title: str
    mark: str
    rows: Rows
    older: Rows = ()
    unused: str = '(?!)'
    merged: tuple[str, str] | None = None
    parts: tuple[str, ...] = ()
    spread: tuple[str, str] | None = None
    scale_shape: tuple[int, ...] = (-1,)


_BLOCK, _OUR_BLOCK = 'layers.{s}.blocks.{b}.', 'stages.{s}.blocks.{b}.'
_PLAIN, _OUR_PLAIN = 'blocks.{i}.', 'stages.{i}.blocks.0.'

# By the names of `tools/convert_checkpoint.py`. The first whose mark is there is taken: timm's
# Swin has the mark of its ViT too. Both of them come with or without LocAt's gates.
SCHEMES: dict[str, KeyScheme] = {
    'rmt': KeyScheme(
        title='RMT release',
        mark='layers.0.blocks.0.retention.q_proj.weight',
        rows=(
            ('patch_embed.proj.', 'embed.'),
            (_BLOCK + 'retention_layer_norm.', _OUR_BLOCK + 'norm1.'),
            (_BLOCK + 'retention.lepe.conv.', _OUR_BLOCK + 'attn.lepe.'),
            (_BLOCK + 'retention.out_proj.', _OUR_BLOCK + 'attn.proj.'),
            (_BLOCK + 'final_layer_norm.', _OUR_BLOCK + 'norm2.'),
            (_BLOCK + 'ffn.dwconv.conv.', _OUR_BLOCK + 'ffn.dwconv.'),
            (_BLOCK + 'ffn.', _OUR_BLOCK + 'ffn.'),
            (_BLOCK + 'pos.conv.', _OUR_BLOCK + 'cpe.'),
            (_BLOCK + 'gamma_{n}', _OUR_BLOCK + 'ls{n}.gamma'),
            ('layers.{s}.downsample.reduction.', 'downsamples.{s}.conv.'),
            ('layers.{s}.downsample.norm.', 'downsamples.{s}.norm.'),
            ('extra_norms.', 'out_norms.'),
            ('proj.', 'head.proj.'),
            ('norm.', 'head.norm.'),
            ('head.', 'head.fc.'),
        ),
        unused=r'(layers\.\d+\.)?Relpos\.|aux_head\.',
        merged=(_BLOCK + 'retention.{part}_proj.', _OUR_BLOCK + 'attn.qkv.'),
        parts=('q', 'k', 'v'),
        scale_shape=(1, 1, 1, -1),
    ),
    'timm-swin': KeyScheme(
        title='timm Swin',
        mark='layers.0.blocks.0.attn.relative_position_bias_table',
        rows=(
            ('patch_embed.', 'embed.'),
            (_BLOCK + 'attn.gaug.log_var.', _OUR_BLOCK + 'attn.prior.to_var.'),
            (_BLOCK + 'attn.gaug.log_alpha.', _OUR_BLOCK + 'attn.prior.to_alpha.'),
            (_BLOCK + 'attn.relative_position_bias_table', _OUR_BLOCK + 'attn.bias_table'),
            (_BLOCK + 'mlp.', _OUR_BLOCK + 'ffn.'),
            (_BLOCK, _OUR_BLOCK),
            # timm puts patch merging in front of a stage, not behind the one before.
            *((f'layers.{s + 1}.downsample.', f'downsamples.{s}.') for s in range(8)),
            ('norm.', 'norm.'),
            ('head.fc.', 'head.fc.'),
        ),
        older=(('head.', 'head.fc.'),),
        unused=r'.*\.(relative_position_index|attn_mask)$',
    ),
    'timm-vit': KeyScheme(
        title='timm ViT',
        mark='patch_embed.proj.weight',
        rows=(
            ('patch_embed.', 'embed.patches.'),
            ('cls_token', 'embed.cls_token'),
            ('pos_embed', 'embed.pos_embed'),
            ('reg_token', 'embed.registers'),
            (_PLAIN + 'attn.gaug.log_var.', _OUR_PLAIN + 'attn.prior.to_var.'),
            (_PLAIN + 'attn.gaug.log_alpha.', _OUR_PLAIN + 'attn.prior.to_alpha.'),
            (_PLAIN + 'mlp.', _OUR_PLAIN + 'ffn.'),
            (_PLAIN, _OUR_PLAIN),
            ('norm.', 'norm.'),
            ('head.', 'head.fc.'),
        ),
        older=(('head.fc.', 'head.fc.'), (_PLAIN + 'gamma_{n}', _OUR_PLAIN + 'ls{n}.gamma')),
        unused=r'dist_token$|head_dist\.',
        spread=('rope.freqs', _OUR_PLAIN + 'attn.prior.rotary.freqs'),
    ),
    'alias-free': KeyScheme(
        title='Alias-Free ViT release',
        mark='blocks.0.local_mp.norm.weight',
        rows=(
            ('patch_embed.proj.', 'embed.'),
            (_PLAIN + 'local_mp.', _OUR_PLAIN + 'lpi.'),
            (_PLAIN + 'mlp.', _OUR_PLAIN + 'ffn.'),
            (_PLAIN + 'gamma{n}', _OUR_PLAIN + 'ls{n}.gamma'),
            (_PLAIN, _OUR_PLAIN),
            ('cls_token', 'head.cls_token'),
            ('cls_attn_blocks.{i}.mlp.', 'head.blocks.{i}.ffn.'),
            ('cls_attn_blocks.{i}.gamma{n}', 'head.blocks.{i}.ls{n}.gamma'),
            ('cls_attn_blocks.{i}.', 'head.blocks.{i}.'),
            ('norm.', 'head.norm.'),
            ('head.', 'head.fc.'),
        ),
    ),
}


def find_scheme(keys: Mapping[str, object]) -> KeyScheme | None:
    """Return the scheme by which weights are named; None for our own names and unknown ones."""
    return next((scheme for scheme in SCHEMES.values() if scheme.mark in keys), None)


def to_ours(state: StateDict, scheme: KeyScheme) -> tuple[StateDict, StateDict]:
    """Rename weights from a scheme's names to ours.

    Args:
        state: Weights by the scheme's names.
        scheme: The scheme.

    Returns:
        The weights by our names, unknown names unchanged; and what ours does without, by their
        names.
    """
    ours, unused = {}, {}
    merged: dict[str, dict[str, str]] = {}
    for key, value in state.items():
        if re.match(scheme.unused, key):
            unused[key] = value
        elif scheme.spread and key == scheme.spread[0]:
            ours |= {scheme.spread[1].format(i=i): of for i, of in enumerate(value.unbind(1))}
        elif found := _match_part(key, scheme):
            merged.setdefault(found[0], {})[found[1]] = key
        else:
            new = _rename(key, (*scheme.rows, *scheme.older)) or key
            ours[new] = value.flatten() if new.endswith('.gamma') else value
    for key, names in merged.items():
        if len(names) == len(scheme.parts):
            ours[key] = torch.cat([state[names[part]] for part in scheme.parts])
        else:
            ours |= {name: state[name] for name in names.values()}
    return ours, unused


def to_theirs(state: StateDict, scheme: KeyScheme) -> StateDict:
    """Undo `to_ours`.

    Args:
        state: Weights by our names.
        scheme: The scheme wanted.

    Returns:
        The weights by the scheme's names.

    Raises:
        ValueError: If it has no names for some of them.
    """
    theirs: StateDict = {}
    spread: dict[int, Tensor] = {}
    nameless = []
    back = tuple((ours, their) for their, ours in scheme.rows)
    for key, value in state.items():
        if scheme.merged and (match := _compiled(scheme.merged[1]).match(key)):
            for part, piece in zip(scheme.parts, value.chunk(len(scheme.parts)), strict=True):
                name = scheme.merged[0].format(**match.groupdict(), part=part)
                theirs[name + key[match.end() :]] = piece
        elif scheme.spread and (match := _compiled(scheme.spread[1]).match(key)):
            spread[int(match['i'])] = value
        elif new := _rename(key, back):
            theirs[new] = value.reshape(scheme.scale_shape) if key.endswith('.gamma') else value
        else:
            nameless.append(key)
    if nameless:
        more = ', …' if len(nameless) > 3 else ''
        raise ValueError(
            f'{scheme.title} has no names for {len(nameless)} of the weights: '
            f'{", ".join(nameless[:3])}{more}'
        )
    if spread:
        theirs[scheme.spread[0]] = torch.stack([spread[i] for i in sorted(spread)], 1)
    return theirs


@functools.lru_cache(maxsize=1024)
def _compiled(name: str) -> re.Pattern[str]:
    """Turn a name of a row into a pattern."""
    pattern = re.sub(r'\\{(\w+)\\}', r'(?P<\1>\\d+)', re.escape(name))
    return re.compile(pattern if name.endswith('.') else f'{pattern}$')


def _rename(key: str, rows: Rows) -> str | None:
    """Return the other name of a key by the longest row that fits; None where none does."""
    found = None
    for old, new in rows:
        if (found is None or len(old) > len(found[0])) and (match := _compiled(old).match(key)):
            found = old, new.format(**match.groupdict()) + key[match.end() :]
    return found and found[1]


def _match_part(key: str, scheme: KeyScheme) -> tuple[str, str] | None:
    """Return our key of the tensor that a weight is a part of, and which part; else None."""
    for part in scheme.parts:
        match = _compiled(scheme.merged[0].replace('{part}', part)).match(key)
        if match:
            return scheme.merged[1].format(**match.groupdict()) + key[match.end() :], part
    return None
