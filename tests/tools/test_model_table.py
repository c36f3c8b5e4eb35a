"""The pages of `configs/` and the model index say what the models are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from torch import nn

from mmspatial.models.builder import backbone_classes

ROOT = Path(__file__).parents[2]
PAGE = {'locatswin': 'locatvit'}


@pytest.fixture(scope='module')
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location('model_table', ROOT / 'tools' / 'model_table.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_multiply_adds_of_known_layers(tool: ModuleType) -> None:
    with torch.device('meta'):
        model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8))
    assert tool.count_macs(model, 16) == 8 * 8 * (3 * 9 * 8 + 9 * 8)
    assert tool.count_parameters(model) == 3 * 9 * 8 + 8 + 9 * 8 + 8


def test_multiply_adds_include_attention(tool: ModuleType) -> None:
    """A block of a plain ViT, by hand: four projections, two products, two layers of the FFN."""
    with torch.device('meta'):
        model = backbone_classes()['evt'](
            arch=dict(embed_dims=32, depth=1, num_heads=2, patch_size=16), impl='reference'
        )
    tokens, dim = 1 + 4 * 4, 32
    block = tokens * dim * dim * (4 + 2 * 4) + 2 * tokens * tokens * dim
    assert tool.count_macs(model, 64) == 16 * dim * 3 * 16**2 + block


@pytest.mark.parametrize('backbone', backbone_classes())
def test_pages_have_what_the_tool_prints(tool: ModuleType, backbone: str) -> None:
    cls = backbone_classes()[backbone]
    page = (ROOT / 'configs' / f'{PAGE.get(backbone, backbone)}.md').read_text()
    assert tool.table_row(cls, next(iter(cls.variants))) in page
    for arch in cls.variants:
        with torch.device('meta'):
            parameters = tool.count_parameters(cls(arch=arch))
        assert f'| `{arch}` | {parameters:,} |' in page


def test_model_index_lists_every_config_without_results() -> None:
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    listed = []
    for file in index['Import']:
        metafile = yaml.safe_load((ROOT / file).read_text())
        (collection,) = metafile['Collections']
        assert (ROOT / collection['README']).is_file()
        for model in metafile['Models']:
            assert model['In Collection'] == collection['Name']
            assert model['Config'] == f'configs/{model["Name"]}.py'
            assert Path(file).stem in model['Name'].split('_')
            assert not {'Results', 'Weights'} & model.keys()
            listed.append(model['Name'])
    assert sorted(listed) == sorted(file.stem for file in (ROOT / 'configs').glob('*.py'))
