from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import DefaultScope, init_default_scope
from mmseg.registry import MODELS
from torch import nn

from mmspatial import models
from mmspatial.compat import distributions


def build(kind: str, **options: Any) -> nn.Module:
    init_default_scope('mmseg')
    head = MODELS.build(dict(type=f'mmspatial.{kind}', in_channels=6, num_classes=4, **options))
    head.init_weights()
    nn.init.normal_(head.conv_seg.weight)
    nn.init.normal_(head.conv_seg.bias)
    return head


def test_linear_head_is_linear_in_features_of_one_scale() -> None:
    head = build('LinearHead')
    assert {name for name, _ in head.named_parameters()} == {'conv_seg.weight', 'conv_seg.bias'}
    first, x = torch.randn(2, 3, 5, 7), torch.randn(2, 6, 3, 4) * 10 + 3
    variance, mean = torch.var_mean(x, (0, 2, 3), unbiased=False, keepdim=True)
    expected = F.conv2d((x - mean) / (variance + 1e-5).sqrt(), head.conv_seg.weight)
    torch.testing.assert_close(head([first, x]) - head.conv_seg.bias[:, None, None], expected)
    # Its scale does not matter in training, but in evaluation the norm is fixed: a linear map.
    torch.testing.assert_close(head([first, 5 * x]), head([first, x]), rtol=1e-4, atol=1e-4)
    head.eval()
    y, offset = torch.randn_like(x), head([first, torch.zeros_like(x)])
    of_sum = head([first, 2 * x + y])
    of_parts = 2 * (head([first, x]) - offset) + head([first, y])
    torch.testing.assert_close(of_sum, of_parts, rtol=1e-4, atol=1e-4)


def test_mlp_head_is_its_definition() -> None:
    head, x = build('MLPHead', channels=8, in_index=0), torch.randn(2, 6, 3, 4)
    conv, norm, _ = head.features
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    hidden = torch.einsum('oc,bchw->bohw', conv.weight[..., 0, 0], x) + conv.bias[:, None, None]
    variance, mean = torch.var_mean(hidden, (1, 2, 3), unbiased=False, keepdim=True)
    hidden = (hidden - mean) / (variance + 1e-5).sqrt()
    hidden = hidden * norm.weight[:, None, None] + norm.bias[:, None, None]
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    expected = torch.einsum('oc,bchw->bohw', head.conv_seg.weight[..., 0, 0], hidden)
    expected = expected + head.conv_seg.bias[:, None, None]
    torch.testing.assert_close(head([x]), expected, rtol=1e-4, atol=1e-4)
    assert build('MLPHead').conv_seg.in_channels == 512


@pytest.mark.parametrize('kind', ['LinearHead', 'MLPHead'])
def test_no_dropout_unless_asked_for(kind: str) -> None:
    assert build(kind).dropout is None
    assert build(kind, dropout_ratio=0.1).dropout.p == 0.1


def test_heads_resolve_from_any_scope() -> None:
    for scope in ('mmdet', 'mmengine', 'mmspatial'):
        with DefaultScope.overwrite_default_scope(scope):
            assert MODELS.get('mmspatial.LinearHead') is not None


def test_without_mmseg_a_head_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # `None` in sys.modules makes an import fail as if the module were missing.
    monkeypatch.setitem(sys.modules, 'mmseg.models.decode_heads.decode_head', None)
    monkeypatch.delitem(sys.modules, 'mmspatial.models.heads.probe', raising=False)
    with pytest.raises(ModuleNotFoundError):
        build('LinearHead')
    # With the metadata of an installation that lacks it.
    monkeypatch.setattr(distributions, 'version', without_mmseg)
    with pytest.raises(RuntimeError, match=r'mmseg \(distribution .* is missing.*pip install'):
        build('LinearHead')


def without_mmseg(name: str) -> str:
    if 'seg' in name:
        raise PackageNotFoundError(name)
    return version(name)


def test_nothing_but_the_heads_imports_a_host() -> None:
    files = Path(models.__file__).parent.rglob('*.py')
    wanting = [
        file
        for file in files
        if re.search(r'^(from|import) mm(seg|det|cv)', file.read_text(), re.M)
    ]
    assert [file.name for file in wanting] == ['probe.py']
