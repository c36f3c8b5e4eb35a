"""What tests of parity files share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

GOLDEN = Path(__file__).parents[1] / 'data' / 'golden'
StateDict = dict[str, Tensor]
Golden = tuple[dict[str, Any], StateDict, dict[str, StateDict]]


def read_golden(name: str) -> Golden:
    """Return the official configuration, the official weights, and the tensors of each case."""
    with safe_open(GOLDEN / f'{name}.safetensors', 'pt') as file:
        config = json.loads(file.metadata()['config'])
        weights, cases = {}, {}
        for key in file.keys():  # noqa: SIM118
            where, _, rest = key.partition('/')
            target = weights if where == 'weights' else cases.setdefault(where, {})
            target[rest] = file.get_tensor(key)
    return config, weights, cases


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest expected value."""
    assert found.shape == expected.shape
    return ((found - expected).abs().max() / expected.abs().max()).item()


def worst_error(model: nn.Module, cases: dict[str, StateDict], word: str) -> float:
    """Return the worst `relative_error` of all maps (``word0``, ``word1``, …) and logits."""
    dtype = next(model.parameters()).dtype
    found = []
    with torch.no_grad():
        for case in cases.values():
            x = case['input'].to(dtype)
            found += [
                relative_error(y, case[f'{word}{i}']) for i, y in enumerate(model.feature_maps(x))
            ]
            found.append(relative_error(model(x), case['logits']))
    return max(found)


def silence(model: nn.Module) -> None:
    """Turn the Gaussians of LocAt off: softplus of -200 is 0."""
    for name, parameter in model.named_parameters():
        if '.to_alpha.' in name:
            nn.init.constant_(parameter, -200.0 if name.endswith('bias') else 0.0)


def randomise(model: nn.Module, std: float = 0.2) -> None:
    """Draw every parameter, so that none sits at a value which hides it."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
