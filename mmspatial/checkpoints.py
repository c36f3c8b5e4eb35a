"""Weights from the files that people have into our backbones, with a report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from .compat.checkpoint import CheckpointError, load_file
from .key_schemes import StateDict, find_scheme, to_ours

MIN_MATCHED = 0.9
# In this order: an EMA copy is taken only where there is nothing else.
_CONTAINERS = ('model', 'state_dict', 'model_ema', 'state_dict_ema', 'module')
_PREFIXES = ('module.', 'backbone.')


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
    state, report = unwrap(content, name), LoadReport('our own')
    if scheme := find_scheme(state):
        state, unused = to_ours(state, scheme)
        report = LoadReport(scheme.title, skipped=list(unused))

    for prefix, module in model.named_modules():
        if hasattr(module, 'fit_weights'):
            module.fit_weights(state, f'{prefix}.' if prefix else '')

    target = model.state_dict()
    loaded: StateDict = {}
    for key, value in state.items():
        if key not in target:
            (report.skipped if _is_absent_part(key, model) else report.unexpected).append(key)
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


def _is_absent_part(key: str, model: nn.Module) -> bool:
    """Say whether a key is of a part that a backbone leaves out: a head, norm or last stages."""
    part, _, rest = key.partition('.')
    if part in ('stages', 'downsamples'):
        index = rest.partition('.')[0]
        return index.isdigit() and int(index) >= len(getattr(model, part, ()))
    return part in ('head', 'norm', 'out_norms')


def unwrap(content: object, name: str) -> StateDict:
    """Open containers and strip prefixes until keys are those of a backbone.

    Args:
        content: What a file held, or a state dict.
        name: Of the source, for messages.

    Returns:
        The weights of the backbone, by whatever names they have.

    Raises:
        CheckpointError: If there are none.
    """
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
