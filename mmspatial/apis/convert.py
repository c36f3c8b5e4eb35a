"""What `tools/convert_checkpoint.py` does: weights between releases' layouts and ours."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mmspatial.checkpoints import load_weights, unwrap
from mmspatial.compat.checkpoint import TRUST_VARIABLE, is_url, load_file
from mmspatial.key_schemes import SCHEMES, StateDict, find_scheme, to_ours, to_theirs
from mmspatial.models.builder import backbone_classes
from mmspatial.suggest import near

from .errors import UserError

OURS = 'mmspatial'
SUFFIXES = ('.pth', '.pt', '.safetensors')
# Where a file of ours keeps what only its release needs, for the way back.
_ASIDE = 'release_only'


def convert(args: argparse.Namespace) -> str:
    """Convert a file as a command line says.

    Args:
        args: Options ``source, target, to, backbone, arch, trust_checkpoint``.

    Returns:
        What was read and written, in some lines.

    Raises:
        UserError: If the target exists or cannot be written, or the weights have no such names.
        CheckpointError: If the source cannot be read, or does not fit the backbone asked for.
    """
    source, target = Path(args.source).expanduser(), Path(args.target).expanduser()
    if args.to != OURS and args.to not in SCHEMES:
        known = (OURS, *SCHEMES)
        raise UserError(
            f"no layout '{args.to}'{near(args.to, known) or '.'} Known: {', '.join(known)}."
        )
    if is_url(args.source):
        raise UserError(f"'{args.source}' is an address: download the file first")
    if args.arch and not args.backbone:
        raise UserError('--arch needs --backbone')
    _check_target(target)
    if args.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = '1'
    content = load_file(source)
    state = unwrap(content, f"'{source}'")

    scheme = find_scheme(state)
    ours, aside = to_ours(state, scheme) if scheme else (state, _read_aside(source, content))
    if not any(key.startswith('stages.') for key in ours):
        raise UserError(
            f"the weights in '{source}' have no names that mmspatial knows: "
            f'{", ".join(list(state)[:3])}, …'
        )
    lines = [f"read '{source}': {scheme.title if scheme else OURS} names, {_count(state)}"]
    if args.backbone:
        lines.append(_check_fit(ours, args.backbone, args.arch))
    if args.to == OURS:
        _write(target, ours, aside, container='state_dict')
        lines.append(f"wrote '{target}': {OURS} names, {_count(ours)}")
        lines += _list_parts(ours)
        if aside:
            lines.append(f'  kept for the way back: {_count(aside)}, {", ".join(list(aside)[:3])}')
        return '\n'.join(lines)

    try:
        theirs = to_theirs(ours, SCHEMES[args.to])
    except ValueError as error:
        raise UserError(f"'{source}' cannot be written as {args.to}: {error}") from error
    _write(target, aside | theirs, {}, container='model')
    lines.append(f"wrote '{target}': {SCHEMES[args.to].title} names, {_count(aside | theirs)}")
    return '\n'.join([*lines, *_list_parts(theirs)])


def _check_target(target: Path) -> None:
    if target.suffix not in SUFFIXES:
        raise UserError(f"'{target}' must end with one of {', '.join(SUFFIXES)}")
    if target.exists():
        raise UserError(f"'{target}' exists already: give another name, or remove it first")
    if not target.parent.is_dir():
        raise UserError(f"there is no folder '{target.parent}' to write '{target.name}' to")


def _check_fit(ours: StateDict, name: str, arch: str | None) -> str:
    """Load weights into a backbone, and say how much of it they are.

    Raises:
        UserError: If there is no such backbone or arch.
        CheckpointError: If the weights do not fit.
    """
    classes = backbone_classes()
    names = {**classes, **{cls.__name__.lower(): cls for cls in classes.values()}}
    short = name.lower().removeprefix('mmspatial.')
    if short not in names:
        raise UserError(
            f"no backbone '{name}'{near(short, names) or '.'} Known: {', '.join(classes)}."
        )
    try:
        model = names[short](arch=arch) if arch else names[short]()
    except ValueError as error:
        raise UserError(str(error)) from error
    return f'fits {type(model).__name__} {arch or ""}: {load_weights(model, ours).summary()}'


def _count(state: StateDict) -> str:
    """Say how many tensors and numbers there are."""
    return f'{len(state)} tensors, {sum(value.numel() for value in state.values()):,} numbers'


def _list_parts(state: StateDict) -> list[str]:
    """Say how large each part is, a part being what stands before the first dot or number."""
    parts: dict[tuple[str, int], StateDict] = {}
    for key, value in state.items():
        name, _, rest = key.partition('.')
        index = rest.partition('.')[0]
        numbered = index.isdigit() and name != 'embed'
        parts.setdefault((name, int(index) if numbered else -1), {})[key] = value
    return [
        f'  {name if index < 0 else f"{name}.{index}":<16}{_count(part)}'
        for (name, index), part in sorted(parts.items())
    ]


def _write(target: Path, state: StateDict, aside: StateDict, *, container: str) -> None:
    """Write weights, and in a file of ours what it keeps aside."""
    # Each tensor its own memory: parts of a split one would carry the whole along.
    state = {
        key: value.clone(memory_format=torch.contiguous_format) for key, value in state.items()
    }
    try:
        if target.suffix == '.safetensors':
            metadata = {'format': 'pt'}
            if aside:
                metadata[_ASIDE] = json.dumps(
                    {key: _to_text(value) for key, value in aside.items()}
                )
            safetensors.torch.save_file(state, target, metadata)
        else:
            torch.save({container: state, **({_ASIDE: aside} if aside else {})}, target)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"cannot write '{target}': {' '.join(str(error).split())}") from error


def _read_aside(source: Path, content: object) -> StateDict:
    """Read what `_write` kept aside."""
    if source.suffix == '.safetensors':
        with safe_open(source, 'pt') as file:
            kept = (file.metadata() or {}).get(_ASIDE)
        return {key: _from_text(value) for key, value in json.loads(kept).items()} if kept else {}
    kept = content.get(_ASIDE) if isinstance(content, Mapping) else None
    return dict(kept) if isinstance(kept, Mapping) else {}


def _to_text(value: Tensor) -> dict[str, object]:
    return {'dtype': str(value.dtype).removeprefix('torch.'), 'values': value.tolist()}


def _from_text(value: dict[str, object]) -> Tensor:
    return torch.tensor(value['values'], dtype=getattr(torch, value['dtype']))
