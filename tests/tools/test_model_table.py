"""The pages of `configs/` and the model index say what the models are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from mmspatial.apis import UserError, model_table
from mmspatial.models.builder import backbone_classes

ROOT = Path(__file__).parents[2]
PAGE = {'locatswin': 'locatvit'}


def test_multiply_adds_of_known_layers() -> None:
    with torch.device('meta'):
        model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8))
    assert model_table.count_macs(model, 16) == 8 * 8 * (3 * 9 * 8 + 9 * 8)
    assert model_table.count_parameters(model) == 3 * 9 * 8 + 8 + 9 * 8 + 8


def test_multiply_adds_include_attention() -> None:
    """A block of a plain ViT, by hand: four projections, two products, two layers of the FFN."""
    with torch.device('meta'):
        model = backbone_classes()['evt'](
            arch=dict(embed_dims=32, depth=1, num_heads=2, patch_size=16), impl='reference'
        )
    tokens, dim = 1 + 4 * 4, 32
    block = tokens * dim * dim * (4 + 2 * 4) + 2 * tokens * tokens * dim
    assert model_table.count_macs(model, 64) == 16 * dim * 3 * 16**2 + block


@pytest.mark.parametrize('backbone', backbone_classes())
def test_pages_have_what_the_tool_prints(backbone: str) -> None:
    cls = backbone_classes()[backbone]
    page = (ROOT / 'configs' / f'{PAGE.get(backbone, backbone)}.md').read_text()
    assert model_table.table_row(cls, next(iter(cls.variants))) in page
    for arch in cls.variants:
        with torch.device('meta'):
            parameters = model_table.count_parameters(cls(arch=arch))
        assert f'| `{arch}` | {parameters:,} |' in page


def test_an_unknown_backbone_is_refused() -> None:
    with pytest.raises(UserError, match=r"no backbone 'etv', did you mean 'evt'"):
        model_table.model_table('etv', ROOT)


def test_every_config_is_in_one_table_of_the_zoo() -> None:
    names = [file.stem for file in (ROOT / 'configs').glob('*.py')]
    in_tables = [name for task in model_table.TASKS for name in model_table.names_of(task, names)]
    assert sorted(in_tables) == sorted(names)
    page = (ROOT / 'configs' / 'README.md').read_text()
    assert re.findall(r'^\| \[`(\w+)`\]\((?:\1)\.py\) \|', page, re.MULTILINE) == in_tables


def test_zoo_has_the_papers_numbers() -> None:
    reported = model_table.reported_results(ROOT)
    page = (ROOT / 'configs' / 'README.md').read_text()
    for name, number in reported.items():
        assert re.search(rf'^\| \[`{name}`\].* \| {number} \| not measured \|$', page, re.MULTILINE)
    assert reported['semfpn_evt_t_ade20k'] == '48.3'
    assert reported['cascade_rmt_b_coco_3x'] == '54.5 / 47.2'
    assert not reported['upernet_sdt_b_ade20k']


def check_row(name: str) -> None:
    row = model_table.zoo_row(ROOT, name, model_table.reported_results(ROOT)[name])
    assert row in (ROOT / 'configs' / 'README.md').read_text().splitlines()


def test_zoo_counts_the_whole_model() -> None:
    check_row('upernet_evt_xs_scenes')


@pytest.mark.slow
def test_zoo_counts_a_model_of_each_task() -> None:
    names = list(model_table.reported_results(ROOT))
    for task in model_table.TASKS:
        check_row(model_table.names_of(task, names)[0])


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
