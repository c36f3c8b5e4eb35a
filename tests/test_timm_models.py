from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data import resolve_data_config
from timm.models import load_checkpoint
from timm.optim import create_optimizer_v2
from timm.utils import CheckpointSaver, ModelEmaV3
from torch import Tensor, nn

from mmspatial import build_backbone, list_backbones, load_weights, timm_models
from mmspatial.compat.checkpoint import CheckpointError, load_file
from mmspatial.models.builder import backbone_classes

# One of each trunk and head, made small by fields of the variant table.
SMALL: dict[str, dict[str, Any]] = {
    'mmspatial_evt_tiny': dict(depths=(1, 2, 1, 1), embed_dims=(16, 32, 48, 64)),
    'mmspatial_sdt_tiny': dict(
        depths=(1, 1, 2, 1), embed_dims=(16, 32, 48, 64), layer_scale=(None, None, 1e-6, 1e-6)
    ),
    'mmspatial_rmt_swin_tiny': dict(depths=(1, 2), embed_dims=(24, 48), num_heads=(3, 6),
        mlp_ratios=(2, 2), decay_init=(2, 2), decay_range=(6, 6), decomposed=(True, False)),
    'mmspatial_evt_deit_tiny': dict(depth=3, embed_dims=48),
    'mmspatial_locatvit_tiny': dict(depth=4, embed_dims=48, num_registers=2, img_size=64),
    'mmspatial_locatswin_tiny': dict(embed_dims=24, depths=(1, 2), num_heads=(3, 6), img_size=56),
    'mmspatial_aliasfree_nano': dict(depth=3, embed_dims=32),
}  # fmt: skip
PLAIN = ('mmspatial_evt_deit_tiny', 'mmspatial_locatvit_tiny', 'mmspatial_aliasfree_nano')
SMALL['mmspatial_evt_tiny']['num_heads'] = SMALL['mmspatial_sdt_tiny']['num_heads'] = (2, 2, 4, 4)
every = pytest.mark.parametrize('name', SMALL)


def create(name: str, **options: Any) -> nn.Module:
    return timm.create_model(name, **{'num_classes': 5, **SMALL[name], **options})


def image(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 3, 40, 56)))


def state_equal(a: nn.Module, b: nn.Module) -> bool:
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_every_arch_is_there_and_is_the_backbone() -> None:
    names = {
        f'mmspatial_{short}_{arch}'
        for short, cls in backbone_classes().items()
        for arch in cls.variants
    }
    assert set(timm.list_models('mmspatial_*')) == names
    assert len(names) == sum(map(len, list_backbones().values()))
    assert timm.list_pretrained('mmspatial_*') == []
    with torch.device('meta'):
        for name in names:
            short, _, arch = name.removeprefix('mmspatial_').partition('_')
            model = timm.create_model(name, num_classes=10)
            backbone = backbone_classes()[short](arch=arch, num_classes=10)
            shapes = [
                {key: value.shape for key, value in m.state_dict().items()}
                for m in (model, backbone)
            ]
            assert shapes[0] == shapes[1]
            cfg = model.default_cfg
            assert cfg['architecture'] == name
            assert model.get_submodule(cfg['classifier']) is model.get_classifier()
            assert not {'url', 'hf_hub_id', 'file'} & {key for key, value in cfg.items() if value}


def test_only_the_import_registers() -> None:
    code = (
        'import timm, mmspatial, mmspatial.models, mmspatial.checkpoints\n'
        "assert not timm.list_models('mmspatial*')\n"
        'import mmspatial.timm_models\n'
        "assert len(timm.list_models('mmspatial*', module='timm_models')) > 20"
    )
    subprocess.run([sys.executable, '-W', 'error::UserWarning', '-c', code], check=True)


@every
def test_logits_and_features_are_those_of_the_backbone(name: str) -> None:
    short, _, arch = name.removeprefix('mmspatial_').partition('_')
    cls = backbone_classes()[short]
    spec = cls.variants[arch] | SMALL[name]
    stages = range(spec.get('depth') or len(spec['depths']))
    backbone = cls(arch=spec, out_indices=stages, num_classes=5).eval()
    model = create(name).eval()
    model.load_state_dict(backbone.state_dict())
    x = image()
    with torch.no_grad():
        assert torch.equal(model(x), backbone(x))
        tokens, maps = model.forward_intermediates(x)
        expected = backbone.feature_maps(x)
        assert len(maps) == len(expected) == len(model.feature_info)
        assert all(map(torch.equal, maps, expected))
        assert torch.equal(tokens, model.forward_features(x))
        assert torch.equal(model.forward_head(tokens), model(x))
        hidden = model.forward_head(tokens, pre_logits=True)
        assert hidden.shape == (2, model.head_hidden_size)
        torch.testing.assert_close(model.get_classifier()(hidden), model(x))
    assert tokens.shape[2] == model.num_features
    grid = maps[-1].shape[2] * maps[-1].shape[3]
    assert tokens.shape[1] == model.num_prefix_tokens + grid


@every
def test_formats_and_selection_of_intermediates(name: str) -> None:
    model = create(name).eval()
    x = image()
    with torch.no_grad():
        tokens, maps = model.forward_intermediates(x)
        only = dict(intermediates_only=True)
        rows = model.forward_intermediates(x, output_fmt='NHWC', **only)
        lists = model.forward_intermediates(x, output_fmt='NLC', **only)
        for out, row, flat in zip(maps, rows, lists, strict=True):
            assert torch.equal(row, out.permute(0, 2, 3, 1))
            assert torch.equal(flat, row.flatten(1, 2))
        early = model.forward_intermediates(x, [0, -1], stop_early=True, **only)
        assert torch.equal(early[0], maps[0])
        assert torch.equal(early[1], maps[-1])
        (first,) = model.forward_intermediates(x, [0], stop_early=True, **only)
        assert torch.equal(first, maps[0])
        (last,) = model.forward_intermediates(x, 1, norm=True, output_fmt='NLC', **only)
        assert torch.equal(last, tokens[:, model.num_prefix_tokens :])
    with pytest.raises(ValueError, match="output_fmt='NCL': expected one of NCHW, NHWC, NLC"):
        model.forward_intermediates(x, output_fmt='NCL')


def test_the_final_norm_is_on_all_outputs_of_a_plain_vit() -> None:
    model = create('mmspatial_locatvit_tiny').eval()
    nn.init.constant_(model.norm.bias, 3.0)
    with torch.no_grad():
        maps = model.forward_intermediates(image(), norm=True, intermediates_only=True)
    for out in maps:
        torch.testing.assert_close(out.mean(1), torch.full_like(out.mean(1), 3.0))


@every
def test_features_only(name: str) -> None:
    whole = create(name).eval()
    features = create(name, features_only=True, out_indices=(0, 1)).eval()
    features.model.load_state_dict(whole.state_dict(), strict=False)
    x = image()
    with torch.no_grad():
        found = features(x)
        expected = whole.forward_intermediates(x, (0, 1), intermediates_only=True)
    assert all(map(torch.equal, found, expected))
    assert [y.shape[1] for y in found] == features.feature_info.channels()
    assert [-(-40 // s) for s in features.feature_info.reduction()] == [y.shape[2] for y in found]
    # What is not needed is gone: each parameter gets a gradient.
    sum(y.square().mean() for y in features.train()(x)).backward()
    assert all(p.grad is not None for p in features.parameters())


@every
def test_reset_classifier(name: str) -> None:
    model = create(name).eval()
    x = image()
    with torch.no_grad():
        hidden = model.forward_head(model.forward_features(x), pre_logits=True)
        model.reset_classifier(0)
        assert model.num_classes == 0
        assert torch.equal(model(x), hidden)
        model.reset_classifier(0, '')
        assert torch.equal(model(x), model.forward_features(x))
        model.reset_classifier(7)
        assert (model(x).shape, model.num_classes) == ((2, 7), 7)
        same = create(name, num_classes=0, global_pool='').eval()
        assert same(x).shape == model.forward_features(x).shape
    for options in (dict(num_classes=3, global_pool=''), dict(num_classes=3, global_pool='max')):
        with pytest.raises(ValueError, match='global_pool='):
            model.reset_classifier(**options)


@every
def test_timms_training_utilities(name: str, tmp_path: Path) -> None:
    """One step with weight decay, layer decay, checkpointing and EMA, saved and read again."""
    model = create(name, drop_path_rate=0.0)
    model.set_grad_checkpointing()
    optimizer = create_optimizer_v2(model, opt='adamw', lr=0.1, weight_decay=0.1, layer_decay=0.5)
    ema = ModelEmaV3(model, decay=0.5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model(image()).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    optimizer.step()
    ema.update(model)
    key = 'head.fc.weight'
    torch.testing.assert_close(
        ema.module.state_dict()[key], (before[key] + model.state_dict()[key]) / 2
    )

    saver = CheckpointSaver(
        model, optimizer, model_ema=ema, checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path)
    )
    saver.save_checkpoint(0, metric=1.0)
    other = create(name)
    load_checkpoint(other, str(tmp_path / 'last.pth.tar'), use_ema=False)
    assert state_equal(other, model)
    load_checkpoint(other, str(tmp_path / 'last.pth.tar'), use_ema=True)
    assert state_equal(other, ema.module)
    again = create(name, checkpoint_path=str(tmp_path / 'last.pth.tar'))
    assert state_equal(again, ema.module)


@every
def test_only_weights_of_layers_decay(name: str) -> None:
    model = create(name)
    kept_from_decay = model.no_weight_decay()
    for key, _ in model.named_parameters():
        last = key.rpartition('.')[2]
        assert (key in kept_from_decay) == (last not in ('weight', 'gate_weight')), key
    tables = {
        'mmspatial_locatvit_tiny': 'embed.pos_embed embed.cls_token embed.registers',
        'mmspatial_aliasfree_nano': 'head.cls_token stages.1.blocks.0.attn.temperature',
        'mmspatial_locatswin_tiny': 'stages.0.blocks.0.attn.bias_table',
        'mmspatial_sdt_tiny': 'stages.2.blocks.0.attn.prior.alpha '
        'stages.2.blocks.0.attn.prior.gate_bias stages.3.blocks.0.ls1.gamma',
    }
    assert set(tables.get(name, '').split()) <= kept_from_decay


def test_layers_are_ordered_from_image_to_logits() -> None:
    model = create('mmspatial_evt_tiny')
    for coarse, expected in ((False, 7), (True, 6)):
        matcher = model.group_matcher(coarse)
        groups = timm.models.group_parameters(model, matcher, reverse=True)
        depth = [
            groups[key]
            for key in (
                'embed.0.weight', 'stages.0.blocks.0.norm1.weight', 'downsamples.0.conv.weight',
                'stages.1.blocks.0.norm1.weight', 'stages.1.blocks.1.norm1.weight',
                'stages.3.blocks.0.norm1.weight', 'head.fc.weight',
            )
        ]  # fmt: skip
        assert depth == ([0, 1, 1, 2, 3, 5, 6] if not coarse else [0, 1, 1, 2, 2, 4, 5])
        assert len(set(groups.values())) == expected
    plain = create('mmspatial_locatvit_tiny')
    groups = timm.models.group_parameters(plain, plain.group_matcher(), reverse=True)
    assert groups['norm.weight'] == groups['stages.3.blocks.0.ffn.fc1.bias'] == 4


def test_pretrained_says_how_to_load_a_file() -> None:
    with pytest.raises(CheckpointError) as error:
        timm.create_model('mmspatial_rmt_tiny', pretrained=True)
    message = str(error.value)
    assert message.startswith('there are no hosted weights of mmspatial_rmt_tiny.')
    assert 'pretrained_cfg_overlay=dict(file=' in message
    assert 'checkpoint_path=' in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize('features_only', [False, True])
def test_a_file_of_other_names_and_channels(tmp_path: Path, features_only: bool) -> None:
    """A timm ViT's weights, for another size of image, grey ones, and other classes."""
    vit = timm.create_model(
        'vit_tiny_patch16_224', num_classes=3, img_size=96, embed_dim=48, depth=4
    )
    torch.save(vit.state_dict(), tmp_path / 'vit.pth')
    options = dict(pretrained=True, pretrained_cfg_overlay=dict(file=str(tmp_path / 'vit.pth')))
    model = create('mmspatial_locatvit_tiny', in_chans=1, features_only=features_only, **options)
    inner = model.model if features_only else model
    grey = vit.patch_embed.proj.weight.sum(1, keepdim=True)
    torch.testing.assert_close(inner.embed.patches.proj.weight, grey)
    assert torch.equal(inner.stages[2].blocks[0].attn.qkv.weight, vit.blocks[2].attn.qkv.weight)
    assert inner.embed.pos_embed.shape == (1, 3 + 16, 48)
    model(image(1, 1, 64, 64))
    with pytest.raises(CheckpointError, match='does not fit TimmEVT'):
        create('mmspatial_evt_tiny', **options)


def test_weights_go_on_to_a_segmentors_backbone(tmp_path: Path) -> None:
    model = create('mmspatial_evt_tiny')
    torch.save({'state_dict': model.state_dict(), 'arch': 'x'}, tmp_path / 'last.pth.tar')
    assert load_file(tmp_path / 'last.pth.tar').keys() == {'state_dict', 'arch'}
    backbone = build_backbone('EVT', arch=model.variants['tiny'] | SMALL['mmspatial_evt_tiny'])
    report = load_weights(backbone, tmp_path / 'last.pth.tar')
    assert not report.unexpected
    assert all(key.startswith('out_norms.') for key in report.missing)
    assert all(key.startswith('head.') for key in report.skipped)


@every
def test_copies_and_data_config(name: str) -> None:
    model = create(name, drop_rate=0.5).eval()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        copy = pickle.loads(pickle.dumps(model))
        x = image()
        assert torch.equal(copy(x), model(x))
    config = resolve_data_config({}, model=model)
    assert (config['input_size'], config['crop_pct']) == ((3, 224, 224), 0.9)
    model.train()
    assert not torch.equal(model.head_drop(torch.ones(64)), torch.ones(64))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match='wrong_word'):
        create('mmspatial_evt_tiny', wrong_word=3)
    assert isinstance(create('mmspatial_evt_tiny', frozen_stages=1), timm_models.TimmModel)
