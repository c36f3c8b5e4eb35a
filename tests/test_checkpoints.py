from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel, BaseModule
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmspatial import build_backbone, load_weights
from mmspatial.compat.checkpoint import CheckpointError
from mmspatial.key_schemes import SCHEMES, to_ours, to_theirs
from mmspatial.models import EVT, RMT

GOLDEN = Path(__file__).parent / 'data' / 'golden' / 'rmt_decomposed2_layerscale.safetensors'
ARCH: dict[str, Any] = dict(
    embed_dims=[16, 32, 48, 64], depths=[1, 2, 2, 1], num_heads=[2, 2, 4, 4],
    mlp_ratios=[4, 4, 3, 3], decomposed=[True, True, False, False],
    layer_scale=[None, None, 1e-6, 1e-6],
)  # fmt: skip
StateDict = dict[str, Tensor]


def official() -> StateDict:
    return {
        key.removeprefix('weights/'): value
        for key, value in load_file(GOLDEN).items()
        if key.startswith('weights/')
    }


def small(seed: int = 0, **options: Any) -> RMT:
    torch.manual_seed(seed)
    return RMT(arch=ARCH, **options)


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


CONTAINERS: dict[str, Callable[[StateDict], dict[str, Any]]] = {
    'bare': lambda s: s,
    'model': lambda s: {'model': s, 'epoch': 3},
    'state_dict': lambda s: {'state_dict': s, 'meta': {'seed': 1}},
    'model_ema': lambda s: {'model_ema': s, 'args': None},
    'state_dict_ema': lambda s: {'state_dict_ema': s},
    'module': lambda s: {'module': s},
    'nested': lambda s: {'model': {'state_dict': s}},
    'prefix module.': lambda s: {f'module.{k}': v for k, v in s.items()},
    'prefix backbone.': lambda s: {f'backbone.{k}': v for k, v in s.items()},
    'both prefixes': lambda s: {'state_dict': {f'module.backbone.{k}': v for k, v in s.items()}},
    'segmentor': lambda s: {
        'state_dict': {f'backbone.{k}': v for k, v in s.items()}
        | {'decode_head.conv_seg.weight': torch.ones(2), 'data_preprocessor.mean': torch.ones(3)},
        'optimizer': {'state': {}},
    },
}


@pytest.mark.parametrize('container', CONTAINERS)
@pytest.mark.parametrize('scheme', ['official', 'ours'])
def test_containers_and_prefixes(container: str, scheme: str) -> None:
    expected = small(1)
    load_weights(expected, official())
    model = small(2)
    assert not same(model, expected)
    state = official() if scheme == 'official' else expected.state_dict()
    report = load_weights(model, CONTAINERS[container](state))
    assert same(model, expected)
    assert report.fraction == 1
    assert not report.missing
    assert not report.unexpected


@pytest.mark.parametrize('trained_first', [True, False])
def test_weights_come_before_their_average(trained_first: bool) -> None:
    state = official()
    ema = {key: value + 1 for key, value in state.items()}
    content = (
        {'model': state, 'model_ema': ema} if trained_first else {'model_ema': ema, 'model': state}
    )
    model, expected = small(1), small(2)
    load_weights(model, content)
    load_weights(expected, state)
    assert same(model, expected)


def test_official_names_land_where_they_belong() -> None:
    state = official()
    model = small()
    report = load_weights(model, state)
    assert report.scheme == 'RMT release'
    block, key = model.stages[2].blocks[1], 'layers.2.blocks.1.'
    parts = [state[f'{key}retention.{part}_proj.weight'] for part in 'qkv']
    assert torch.equal(block.attn.qkv.weight, torch.cat(parts))
    assert torch.equal(block.attn.proj.bias, state[f'{key}retention.out_proj.bias'])
    assert torch.equal(block.norm2.weight, state[f'{key}final_layer_norm.weight'])
    assert torch.equal(block.ls2.gamma, state[f'{key}gamma_2'].flatten())
    assert torch.equal(model.out_norms['3'].bias, state['extra_norms.3.bias'])


@pytest.mark.parametrize('suffix', ['.pth', '.pt', '.safetensors'])
@pytest.mark.parametrize('as_text', [True, False])
def test_files(tmp_path: Path, suffix: str, as_text: bool) -> None:
    path = tmp_path / f'weights{suffix}'
    if suffix == '.safetensors':
        save_file(official(), path)
    else:
        torch.save({'model': official(), 'epoch': 7}, path)
    model, expected = small(1), small(2)
    report = load_weights(model, str(path) if as_text else path)
    load_weights(expected, official())
    assert report.fraction == 1
    assert same(model, expected)


def test_classifiers_and_tables_of_a_release_are_skipped() -> None:
    extra = {
        'head.bias': 'head.fc.bias', 'norm.weight': 'head.norm.weight',
        'proj.weight': 'head.proj.weight', 'aux_head.weight': 'aux_head.weight',
    }  # fmt: skip
    state = official()
    tables = [key for key in state if 'Relpos' in key]
    assert tables
    report = load_weights(small(), state | {key: torch.ones(4) for key in extra})
    assert sorted(report.skipped) == sorted([*tables, *extra.values()])
    assert not report.unexpected
    assert report.fraction == 1
    assert 'skipped' in report.summary()


def test_classifier_release_without_output_norms_loads_into_a_dense_model() -> None:
    state = {key: value for key, value in official().items() if 'extra_norms' not in key}
    model = small()
    report = load_weights(model, state)
    assert 0.9 <= report.fraction < 1
    assert sorted(report.missing) == sorted(k for k in model.state_dict() if 'out_norms' in k)
    assert '8 missing: out_norms.0.weight' in report.summary()


def test_stages_that_the_model_does_not_have_are_skipped() -> None:
    model = small(out_indices=(1,))
    report = load_weights(model, official())
    assert report.fraction == 1
    skipped = [key for key in report.skipped if 'Relpos' not in key]
    absent = ('stages.2.', 'stages.3.', 'downsamples.1.', 'downsamples.2.', 'out_norms.')
    assert all(key.startswith(absent) for key in skipped)
    assert {key[:12] for key in skipped if 'norms' in key} == {f'out_norms.{i}.' for i in (0, 2, 3)}
    assert not report.unexpected


def test_unknown_keys_are_reported_as_unexpected() -> None:
    report = load_weights(small(), official() | {'teacher.weight': torch.ones(3)})
    assert report.unexpected == ['teacher.weight']
    assert '1 unexpected: teacher.weight' in report.summary()


def test_a_tensor_of_another_shape_is_missing_with_both_shapes() -> None:
    state = official()
    state['extra_norms.0.weight'] = torch.ones(5)
    report = load_weights(small(), state)
    assert report.missing == ['out_norms.0.weight (it is (5,), the model has (16,))']


def rmt(**fields: Any) -> RMT:
    return RMT(arch=ARCH | fields)


WRONG: dict[str, tuple[Callable[[], nn.Module], str]] = {
    'other widths': (lambda: rmt(embed_dims=[16, 32, 64, 128]), r'missing: .*it is'),
    'more blocks': (lambda: rmt(depths=[1, 2, 8, 1]), r'missing: stages\.2\.blocks'),
    'another backbone of the same kind': (lambda: build_backbone('LocAtViT'), 'does not fit Loc'),
    'another backbone': (lambda: build_backbone('EVT', arch='tiny'), 'does not fit EVT'),
}


@pytest.mark.parametrize('case', WRONG)
def test_wrong_arch_raises_and_leaves_the_model_alone(case: str) -> None:
    make, message = WRONG[case]
    model = make()
    before = copy.deepcopy(model)
    with pytest.raises(CheckpointError, match=message) as error:
        load_weights(model, official())
    assert 'Nothing was loaded' in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert same(model, before)


def test_foreign_weights_name_missing_and_unexpected_keys() -> None:
    state = {f'blocks.{i}.attn.qkv.weight': torch.ones(3, 3) for i in range(5)}
    with pytest.raises(CheckpointError) as error:
        load_weights(small(), state)
    assert 'the state dict does not fit RMT: 0.0%' in str(error.value)
    assert 'missing: embed.0.weight' in str(error.value)
    assert '5 unexpected: blocks.0.attn.qkv.weight' in str(error.value)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ({}, 'holds no weights'),
        ({'epoch': 3, 'optimizer': 'x'}, 'holds no weights: epoch, optimizer'),
        ({'state_dict': {}}, 'holds no weights'),
        ({'state_dict': {'decode_head.weight': torch.ones(1)}}, 'does not fit'),
    ],
)
def test_sources_without_weights(content: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_weights(small(), content)


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='does not exist'):
        load_weights(small(), tmp_path / 'nowhere.pth')
    torch.save([torch.ones(1)], tmp_path / 'list.pth')
    with pytest.raises(CheckpointError, match='holds a list, not a dict'):
        load_weights(small(), tmp_path / 'list.pth')


def test_an_ema_or_half_precision_source_takes_the_models_dtype() -> None:
    model = small()
    load_weights(model, {key: value.half() for key, value in official().items()})
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(
        model.embed[0].weight, official()['patch_embed.proj.0.weight'].half().float()
    )


class Segmentor(BaseModel):
    """The part of a segmentor that matters here: a backbone and a head below a BaseModel."""

    def __init__(self, backbone: BaseModule) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs)


@pytest.mark.smoke
def test_init_cfg_loads_through_the_whole_models_init_weights(tmp_path: Path) -> None:
    path = tmp_path / 'rmt.pth'
    torch.save({'model': official()}, path)
    expected = small(1)
    load_weights(expected, official())

    model = Segmentor(small(2, init_cfg=dict(type='Pretrained', checkpoint=str(path))))
    assert not same(model.backbone, expected)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        model.init_weights()
    assert same(model.backbone, expected)
    direct = build_backbone(
        'RMT', arch=ARCH, init_cfg=dict(type='Pretrained', checkpoint=str(path))
    )
    assert same(direct, expected)


def test_init_cfg_may_be_a_list(tmp_path: Path) -> None:
    """The checkpoint comes last, and MMEngine's own loader, which loads nothing, never."""
    path = tmp_path / 'rmt.pth'
    torch.save(official(), path)
    cfgs = [
        dict(type='Pretrained', checkpoint=str(path)),
        dict(type='Constant', layer=['Linear', 'Conv2d'], val=3.0, bias=3.0),
    ]
    expected = small(1)
    load_weights(expected, official())
    model = Segmentor(small(2, init_cfg=cfgs))
    model.init_weights()
    assert same(model.backbone, expected)
    assert model.backbone.init_cfg == cfgs
    model = build_backbone('RMT', arch=ARCH, init_cfg=cfgs[1:])
    assert (model.embed[0].weight == 3).all()


def test_building_logs_nothing_without_init_cfg(capsys: pytest.CaptureFixture[str]) -> None:
    build_backbone('RMT', arch=ARCH)
    assert capsys.readouterr() == ('', '')


def test_init_cfg_with_the_wrong_file_raises(tmp_path: Path) -> None:
    path = tmp_path / 'other.pth'
    torch.save({'model': {'fc.weight': torch.ones(3)}}, path)
    model = Segmentor(small(init_cfg=dict(type='Pretrained', checkpoint=str(path))))
    with pytest.raises(CheckpointError, match=r"other\.pth' does not fit RMT"):
        model.init_weights()


def test_without_init_cfg_init_weights_changes_nothing() -> None:
    model = Segmentor(small(3))
    before = copy.deepcopy(model)
    model.init_weights()
    assert same(model, before)


def test_a_trained_segmentors_checkpoint_gives_its_backbone(tmp_path: Path) -> None:
    trained = Segmentor(small(5))
    torch.save({'state_dict': trained.state_dict(), 'meta': {'epoch': 1}}, tmp_path / 'epoch_1.pth')
    model = small(6)
    assert load_weights(model, tmp_path / 'epoch_1.pth').fraction == 1
    assert same(model, trained.backbone)


def test_evt_takes_what_it_has_in_common_with_rmts_release() -> None:
    """The same widths with EVT's plain FFN: all EVT parameters exist in the release."""
    arch = dict(ARCH, group_sizes=[49, 49, 49, None])
    del arch['decomposed']
    model = EVT(arch=arch)
    report = load_weights(model, official())
    assert report.fraction == 1
    assert all('Relpos' in key for key in report.skipped)
    assert len(report.unexpected) == 2 * sum(ARCH['depths'])
    assert all('.ffn.dwconv.' in key for key in report.unexpected)


def test_only_parts_that_a_backbone_can_leave_out_are_skipped() -> None:
    """A stage's key that the model should have, but has not, is no surprise to hide."""
    extra = {
        'stages.1.blocks.7.norm1.weight': 'unexpected', 'stages.2.blocks.0.norm1.weight': 'skipped',
        'stages.10.blocks.0.norm1.weight': 'skipped', 'stages.oops': 'unexpected',
        'downsamples.0.extra': 'unexpected', 'downsamples.1.conv.bias': 'skipped',
        'out_norms.3.bias': 'skipped', 'norm.bias': 'skipped', 'head.fc.bias': 'skipped',
        'normal.bias': 'unexpected', 'embed.20.bias': 'unexpected',
    }  # fmt: skip
    model = small(out_indices=(1,))
    report = load_weights(model, model.state_dict() | {key: torch.ones(2) for key in extra})
    for word in ('skipped', 'unexpected'):
        assert getattr(report, word) == [key for key, where in extra.items() if where == word]


def test_a_runs_checkpoint_of_a_detector_gives_its_backbone(tmp_path: Path) -> None:
    """As MMEngine saves it: training state, log histories, EMA weights, distributed names."""
    trained = small(5)
    state = {f'module.backbone.{key}': value for key, value in trained.state_dict().items()}
    state |= {'module.neck.convs.0.weight': torch.ones(2), 'module.rpn_head.bias': torch.ones(2)}
    history = HistoryBuffer([1.0, 0.5], [1, 1])
    content = {
        'meta': {'epoch': 3, 'cfg': 'model = dict()', 'seed': 1, 'dataset_meta': {'CLASSES': ()}},
        'state_dict': state,
        'ema_state_dict': {'steps': torch.tensor(3)} | {k: v + 1 for k, v in state.items()},
        'message_hub': {'log_scalars': {'train/loss': history}, 'runtime_info': {'iter': 9}},
        'optimizer': {'state': {0: {'step': torch.tensor(9.0)}}, 'param_groups': [{'lr': 1e-4}]},
        'param_schedulers': [{'last_step': 9}],
    }
    torch.save(content, tmp_path / 'epoch_3.pth')
    model = small(6)
    report = load_weights(model, tmp_path / 'epoch_3.pth')
    assert same(model, trained)
    assert (report.fraction, report.skipped, report.unexpected) == (1, [], [])
    assert report.summary() == '100.0% of the parameters loaded (our own keys)'


def test_half_of_a_merged_weight_is_unexpected() -> None:
    state = official()
    key = 'layers.0.blocks.0.retention.{}_proj.bias'
    del state[key.format('k')]
    report = load_weights(small(), state)
    assert report.unexpected == [key.format('q'), key.format('v')]
    assert report.missing == ['stages.0.blocks.0.attn.qkv.bias']


def test_timms_rotary_frequencies_go_to_the_blocks_and_back() -> None:
    arch = dict(embed_dims=16, depth=2, num_heads=2, img_size=32, pos_embed='rotary')
    model = build_backbone('LocAtViT', arch=arch)
    theirs = to_theirs(model.state_dict(), SCHEMES['timm-vit'])
    assert theirs['rope.freqs'].shape == (2, 2, 2, 4)
    theirs['rope.freqs'] = torch.randn(2, 2, 2, 4)
    assert load_weights(model, theirs).fraction == 1
    for i, stage in enumerate(model.stages):
        freqs = stage.blocks[0].attn.prior.rotary.freqs
        assert torch.equal(freqs, theirs['rope.freqs'][:, i])
    back = to_theirs(model.state_dict(), SCHEMES['timm-vit'])
    assert all(torch.equal(back[key], theirs[key]) for key in theirs)


def test_older_names_are_read_and_the_newest_written() -> None:
    scheme = SCHEMES['timm-swin']
    state = {'head.weight': torch.ones(2), 'layers.1.downsample.norm.bias': torch.ones(3)}
    ours, unused = to_ours(state | {'layers.0.blocks.1.attn_mask': torch.ones(1)}, scheme)
    assert list(ours) == ['head.fc.weight', 'downsamples.0.norm.bias']
    assert list(unused) == ['layers.0.blocks.1.attn_mask']
    assert list(to_theirs(ours, scheme)) == ['head.fc.weight', 'layers.1.downsample.norm.bias']


def test_weights_that_a_scheme_has_no_names_for_are_refused() -> None:
    state = build_backbone('SDT', arch=ARCH).state_dict()
    with pytest.raises(ValueError, match=r'RMT release has no names for 18 .*gate_weight'):
        to_theirs(state, SCHEMES['rmt'])


def test_a_position_embedding_of_another_width_does_not_fit() -> None:
    """It is not resized, which would crash: this is another arch."""
    source = build_backbone('LocAtViT', arch=dict(embed_dims=16, num_heads=2, depth=1))
    model = build_backbone('LocAtViT', arch=dict(embed_dims=24, num_heads=2, depth=1, img_size=64))
    with pytest.raises(CheckpointError, match=r'does not fit LocAtViT: 0\.'):
        load_weights(model, source.state_dict())
