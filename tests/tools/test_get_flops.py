"""`tools/get_flops.py`: its counts against counts by hand, and its messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from tiny import run_tool, write_config
from torch import nn

from mmspatial.apis.costs import (
    Cost,
    attention_costs,
    count_macs,
    count_parameters,
    empty_image,
    using_impl,
)
from mmspatial.apis.get_flops import count_model
from mmspatial.models.builder import backbone_classes
from mmspatial.ops import explain

DIM, HEADS = 32, 2
ONE_STAGE = dict(embed_dims=(DIM,), depths=(2,), num_heads=(HEADS,), mlp_ratios=(2,),
                 decay_range=(4,))  # fmt: skip
PLAIN = dict(embed_dims=DIM, depth=2, num_heads=HEADS, patch_size=8, img_size=48)
# Images of 48 x 64 pixels: a grid of 12 x 16 in the pyramids, of 6 x 8 in the plain ones.
SHAPE = (48, 64)
N, PLAIN_L = 12 * 16, 1 + 6 * 8
CASES = {
    # Four groups of 49 tokens, the last one padded; padding is computed too.
    'evt-groups': ('evt', dict(arch=dict(ONE_STAGE, group_sizes=(49,))), 2 * 4 * 49**2 * DIM),
    'evt-full': ('evt', dict(arch=dict(ONE_STAGE, group_sizes=(None,))), 2 * N**2 * DIM),
    'rmt-rows-columns': (
        'rmt', dict(arch=dict(ONE_STAGE, decomposed=(True,))), 2 * N * (12 + 16) * DIM),
    'sdt-full': ('sdt', dict(arch=dict(ONE_STAGE, decomposed=(False,))), 2 * N**2 * DIM),
    'vit': ('vit', dict(arch=PLAIN), 2 * PLAIN_L**2 * DIM),
    'locatvit': ('locatvit', dict(arch=PLAIN), 2 * PLAIN_L**2 * DIM),
    # Windows of 7 x 7 on a grid of 12 x 16: 2 x 3 of them.
    'locatswin': ('locatswin', dict(out_indices=(0,), arch=dict(
        embed_dims=DIM, depths=(2,), num_heads=(HEADS,), window_size=7, img_size=224)),
        2 * 6 * 49**2 * DIM),
    # Between channels: two products of D x D weights and all tokens per head.
    'aliasfree': ('aliasfree', dict(arch=PLAIN), 2 * 6 * 8 * DIM * DIM // HEADS),
}  # fmt: skip


def build(name: str, **options: object) -> nn.Module:
    kind, settings, _ = CASES[name]
    with torch.device('meta'):
        return backbone_classes()[kind](**settings, **options).eval()


def linear_work(model: nn.Module, length: int) -> int:
    """Count the projections of all attention layers by hand."""
    layers = [module for name, module in model.named_modules() if name.endswith('.attn')]
    assert len(layers) == 2
    work = 0
    for layer in layers:
        work += length * 4 * DIM * DIM
        if getattr(layer, 'lepe', None) is not None:
            work += length * 25 * DIM
    return work


@pytest.mark.parametrize('name', CASES)
def test_attention_is_counted_as_by_hand(name: str) -> None:
    model, per_block = build(name), CASES[name][2]
    layers, products = attention_costs(model, empty_image(*SHAPE))
    assert products == 2 * per_block
    length = {'vit': PLAIN_L, 'locatvit': PLAIN_L, 'aliasfree': 6 * 8, 'locatswin': 6 * 49}
    extra = {
        'sdt-full': N * DIM * HEADS,  # a gate per token and head
        'locatvit': 6 * 8 * DIM * 3,  # three numbers from each head's query, 3 · D · M
        'locatswin': 6 * 49 * DIM * 3,
    }
    by_hand = linear_work(model, length.get(name, N)) + 2 * extra.get(name, 0)
    assert layers.macs == by_hand + 2 * per_block
    attention = [m for n, m in model.named_modules() if n.endswith('.attn')]
    assert layers.parameters == sum(map(count_parameters, attention))


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('impl', ['auto', 'chunked'])
def test_counts_do_not_depend_on_the_implementation(
    name: str, impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = build(name, impl='reference')
    counts = (count_macs(wanted, *SHAPE), attention_costs(wanted, empty_image(*SHAPE)))
    monkeypatch.setenv('MMSPATIAL_IMPL', 'chunked')
    model = build(name, impl=impl)
    assert (count_macs(model, *SHAPE), attention_costs(model, empty_image(*SHAPE))) == counts
    chosen = {module.impl for module in model.modules() if hasattr(module, 'impl')}
    assert chosen == {impl}


def test_implementations_are_forced_only_for_a_while() -> None:
    model = backbone_classes()['rmt'](arch=CASES['rmt-rows-columns'][1]['arch'], impl='chunked')
    model.eval()
    with explain() as decisions, torch.no_grad():
        with using_impl(model, 'reference'):
            model(torch.randn(1, 3, 16, 16))
        assert {d.chosen for d in decisions} == {'reference'}
        model(torch.randn(1, 3, 16, 16))
    assert decisions[-1].chosen == 'chunked'


@pytest.mark.parametrize(
    ('backbone', 'papers'),
    [
        ('rmt', dict(tiny=2.5, small=4.5, base=9.7, large=18.2)),
        ('sdt', dict(tiny=2.7, small=4.8, base=10.8)),
    ],
)
def test_costs_are_near_the_papers(backbone: str, papers: dict[str, float]) -> None:
    for arch, billions in papers.items():
        with torch.device('meta'):
            model = backbone_classes()[backbone](arch=arch).eval()
        assert count_macs(model, 224) / 1e9 == pytest.approx(billions, rel=0.08)


def test_parts_of_a_segmentor(tmp_path: Path) -> None:
    cfg = Config.fromfile(write_config(tmp_path, 'seg'))
    report = count_model(cfg)
    assert report.title == 'tiny_seg, an image of 64 x 64'
    costs = dict(report.rows)
    assert list(costs) == [
        'backbone', '  attention layers', '    products in them', 'decode_head', 'auxiliary_head',
    ]  # fmt: skip
    assert report.total == costs['backbone'] + costs['decode_head']
    # UperHead: pyramid pooling of 32 channels on a grid of 2 x 2, then its convolutions.
    c, top, grids = 16, 32, (16 * 16, 8 * 8, 4 * 4, 2 * 2)
    pooling = sum(side * side for side in (1, 2, 3, 6)) * top * c
    bottleneck = (top + 4 * c) * c * 9 * grids[3]
    laterals = c * (16 * grids[0] + 16 * grids[1] + 32 * grids[2])
    smoothing = c * c * 9 * sum(grids[:3])
    fusion = (4 * c * c * 9 + c * 150) * grids[0]
    wanted = pooling + bottleneck + laterals + smoothing + fusion
    assert costs['decode_head'].macs == wanted
    assert costs['auxiliary_head'].macs == (32 * 8 * 9 + 8 * 150) * grids[2]
    assert 'auxiliary_head works in training only: not in the total.' in report.notes


def test_parts_of_a_detector(tmp_path: Path) -> None:
    cfg = Config.fromfile(write_config(tmp_path, 'det'))
    report = count_model(cfg, (100, 120))
    assert report.title == 'tiny_det, an image of 100 x 120, padded to 128 x 128'
    costs = dict(report.rows)
    c, cells = 16, [32 * 32, 16 * 16, 8 * 8, 4 * 4, 2 * 2]
    lateral = c * (16 * cells[0] + 16 * cells[1] + 32 * cells[2] + 32 * cells[3])
    assert costs['neck'].macs == lateral + c * c * 9 * sum(cells[:4])
    assert costs['rpn_head'].macs == (c * c * 9 + c * 3 * (1 + 4)) * sum(cells)
    # At most 10 proposals and 3 boxes with masks, of 80 classes.
    boxes = c * 49 * 16 + 16 * 16 + 16 * (81 + 4 * 80)
    assert costs['roi_head.bbox_head'].macs == 10 * boxes
    masks = 4 * c * c * 9 * 14**2 + c * c * 28**2 + c * 80 * 28**2
    assert costs['roi_head.mask_head'].macs == 3 * masks
    parts = ('backbone', 'neck', 'rpn_head', 'roi_head.bbox_head', 'roi_head.mask_head')
    assert report.total == sum((costs[part] for part in parts), Cost(0, 0))
    assert not any('Not counted' in note for note in report.notes)
    assert any('10 proposals, masks on 3 boxes' in note for note in report.notes)


def test_backbones_have_several_names(capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for name in ('rmt_t', 'RMT:tiny'):
        run_tool('get_flops', name, '--shape', '64', '96')
        title, table = capsys.readouterr().out.split('\n', 1)
        assert title == f'{name}, an image of 64 x 96'
        tables.append(table)
    assert tables[0] == tables[1]
    assert '12,783,776' in tables[0]


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['rmt_q'], "no backbone 'rmt_q', did you mean 'rmt_"),
        (['RMT:tinny'], "RMT has no arch 'tinny', did you mean 'tiny'"),
        (['upernet_evt_bb_ade20k'], "did you mean 'upernet_evt_b_ade20k'"),
        (['rmt_t', '--shape', '1', '2', '3'], '--shape takes H W'),
        (['rmt_t', '--backbone', 'rmt_s'], "are for configs, 'rmt_t' is none"),
    ],
)
def test_mistakes_are_explained(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_tool('get_flops', *words)
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ''
    assert message in err
