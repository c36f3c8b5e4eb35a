"""Variant tables: from a name or a dict to a checked set of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmspatial.suggest import near

Arch = dict[str, Any]


def resolve_arch(
    backbone: str, arch: str | Mapping[str, Any], variants: Mapping[str, Arch]
) -> Arch:
    """Look an architecture up, or complete one that is given as a dict.

    Args:
        backbone: Name of the backbone, for messages.
        arch: A variant's name, or a dict with fields of a variant. The fields that it leaves out
            are those of the first row that has all fields of the dict. A field with one value
            per stage may be given as one value for all stages.
        variants: Rows by name. A field that is a tuple there has one value per stage.

    Returns:
        All fields of the row; those with a value per stage as tuples of equal length.

    Raises:
        ValueError: If the name or a field is unknown (the message lists the known ones), or
            fields speak of different numbers of stages.
    """
    if isinstance(arch, str):
        if arch not in variants:
            raise ValueError(
                f'{backbone} has no arch {arch!r}{near(arch, variants) or "."} '
                f'Known: {", ".join(variants)}.'
            )
        return dict(variants[arch])

    known = sorted({field for row in variants.values() for field in row})
    for field in arch:
        if field not in known:
            raise ValueError(
                f'{backbone}: arch has no field {field!r}{near(field, known) or "."} '
                f'Known: {", ".join(known)}.'
            )
    defaults = next((row for row in variants.values() if set(arch) <= set(row)), None)
    if defaults is None:
        raise ValueError(f'{backbone}: no variant has all of the fields {", ".join(arch)}')
    return _per_stage(backbone, arch, defaults)


def _per_stage(backbone: str, arch: Mapping[str, Any], defaults: Arch) -> Arch:
    """Complete ``arch``, with single values spread over the stages, whose number must agree."""
    staged = [name for name, value in defaults.items() if isinstance(value, tuple)]
    # A default that is the same in all stages fits any number of them.
    uniform = {name: defaults[name][0] for name in staged if len(set(defaults[name])) == 1}
    fields = {**defaults, **uniform, **arch}
    lengths = {
        name: len(fields[name]) for name in staged if isinstance(fields[name], (list, tuple))
    }
    if len(set(lengths.values())) > 1:
        raise ValueError(f'{backbone}: fields of arch differ in the number of stages: {lengths}')
    num_stages = next(iter(lengths.values()), len(defaults[staged[0]]) if staged else 0)
    for name in staged:
        value = fields[name]
        fields[name] = tuple(value) if name in lengths else (value,) * num_stages
    return fields


def extend(rows: Mapping[str, Arch], *names: str, **fields: Any) -> dict[str, Arch]:
    """Add fields to rows of a variant table, to those of ``names`` or else to all of them."""
    return {name: {**rows[name], **fields} for name in names or rows}


def at_stage(arch: Arch, stage: int) -> Arch:
    """Return the fields of one stage: of those with a value per stage, the stage's."""
    return {
        name: value[stage] if isinstance(value, tuple) else value for name, value in arch.items()
    }
