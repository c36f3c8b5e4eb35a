"""What every backbone promises its users, whatever it computes.

A new backbone joins with a row of `ARCHS`, the smallest sensible dict of each of its kinds.
"""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmspatial import build_backbone, list_backbones, models
from mmspatial.models.trunks.backbone import Backbone

PYRAMID = dict(embed_dims=[8, 16, 16], depths=[2, 1, 2], num_heads=[2, 2, 4], mlp_ratios=2)
DECAY = dict(decay_range=4, layer_scale=[None, None, 1e-2])
PLAIN = dict(embed_dims=16, depth=3, num_heads=2, patch_size=16)
SWIN = dict(depths=[2, 1, 2], num_heads=[2, 2, 4], patch_size=4)
# Three stages or blocks each. The first word is the backbone's name.
ARCHS: dict[str, dict[str, Any]] = {
    'AliasFreeViT': dict(**PLAIN),
    'EVT': dict(**PYRAMID, **DECAY, group_sizes=[9, 16, None]),
    'EVT Swin': dict(**SWIN, embed_dims=[8, 16, 16], group_sizes=[9, 16, None]),
    'LocAtSwin': dict(**SWIN, embed_dims=8, window_size=4, img_size=64),
    'LocAtViT': dict(**PLAIN, mlp_ratio=2, img_size=48, num_registers=2),
    'LocAtViT rotary': dict(**PLAIN, mlp_ratio=2, img_size=48, pos_embed='rotary'),
    'RMT': dict(**PYRAMID, **DECAY, decomposed=[True, True, False]),
    'RMT plain': dict(**PLAIN, img_size=48, decay_range=4),
    'SDT': dict(**PYRAMID, **DECAY, decomposed=[True, True, False]),
    'ViT': dict(**PLAIN, mlp_ratio=2, img_size=48),
}
CASES = [
    pytest.param((name, arch), id=label)
    for label, arch in ARCHS.items()
    if (name := label.partition(' ')[0]) in list_backbones()
]
Case = tuple[str, dict[str, Any]]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def build(case: Case, **options: Any) -> Backbone:
    torch.manual_seed(0)
    options.setdefault('out_indices', (0, 1, 2))
    return build_backbone(case[0], arch=case[1], **options)


def total(outputs: tuple[Tensor, ...] | Tensor) -> Tensor:
    """Make a loss that weighs every element differently."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum((y.float() * torch.linspace(-1, 1, y.numel()).view(y.shape)).mean() for y in outputs)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    model.zero_grad()
    torch.manual_seed(1)
    total(model(x)).backward()
    return {
        name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }


def without_gradient(model: nn.Module, x: Tensor) -> list[str]:
    grads = gradients(model, x)
    return [name for name, grad in grads.items() if grad is None or not grad.isfinite().all()]


def test_every_backbone_is_tested() -> None:
    missing = set(list_backbones()) - {label.partition(' ')[0] for label in ARCHS}
    assert not missing, 'add rows to ARCHS'


@pytest.mark.parametrize('size', [(1, 1), (53, 77), (8, 100), (64, 64)], ids=str)
def test_any_size_in_any_memory_format(case: Case, size: tuple[int, int]) -> None:
    model = build(case).eval()
    x = torch.randn(3, 3, *size)
    with torch.no_grad():
        outputs = model(x)
        channels_last = model(x.contiguous(memory_format=torch.channels_last))
        single = model(x[1:2])
    assert len(outputs) == len(model.out_channels) == len(model.out_strides) == 3
    for y, channels, stride in zip(outputs, model.out_channels, model.out_strides, strict=True):
        assert y.shape == (3, channels, math.ceil(size[0] / stride), math.ceil(size[1] / stride))
        assert y.isfinite().all()
    for y, other, one in zip(outputs, channels_last, single, strict=True):
        torch.testing.assert_close(other, y, rtol=0, atol=2e-5)
        torch.testing.assert_close(one, y[1:2], rtol=0, atol=2e-5)


@pytest.mark.parametrize('out_indices', [(0,), (2, 0), (-1,), [1, 2]], ids=str)
def test_out_indices(case: Case, out_indices: list[int]) -> None:
    """Subsets give the same maps, in ascending order, and keep no parameter without a gradient."""
    every, model = build(case).eval(), build(case, out_indices=out_indices).eval()
    model.load_state_dict({k: v for k, v in every.state_dict().items() if k in model.state_dict()})
    x = torch.randn(2, 3, 40, 56)
    chosen = sorted(range(3)[i] for i in out_indices)
    assert model.out_channels == tuple(every.out_channels[i] for i in chosen)
    assert model.out_strides == tuple(every.out_strides[i] for i in chosen)
    with torch.no_grad():
        maps = every(x)
        for y, i in zip(model(x), chosen, strict=True):
            assert torch.equal(y, maps[i])
    assert without_gradient(model, x) == []


@pytest.mark.parametrize(
    ('out_indices', 'message'),
    [((), 'at least one stage'), ((0, 0), 'each once'), ((99,), r'out_indices=\(99,\)')],
)
def test_bad_out_indices(case: Case, out_indices: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(case, out_indices=out_indices)


@pytest.mark.smoke
def test_every_parameter_gets_a_finite_gradient(case: Case) -> None:
    for train in (True, False):
        assert without_gradient(build(case).train(train), torch.randn(2, 3, 53, 37)) == []


def test_classifier(case: Case) -> None:
    model = build(case, num_classes=5)
    x = torch.randn(3, 3, 53, 37)
    assert model(x).shape == (3, 5)
    assert without_gradient(model, x) == []
    maps = model.eval().feature_maps(x)
    assert [y.shape[1] for y in maps] == list(model.out_channels)


@pytest.mark.parametrize('frozen', [-1, 0, 1, 2])
def test_frozen_stages(case: Case, frozen: int) -> None:
    model = build(case, frozen_stages=frozen, drop_path_rate=0.5)
    before = copy.deepcopy(model.state_dict())
    model.eval()
    model.train()
    parts = [] if frozen < 0 else ['embed.', *(f'stages.{i}.' for i in range(frozen))]
    parts += [f'downsamples.{i}.' for i in range(frozen - 1)]
    parts += [f'out_norms.{i}.' for i in range(max(frozen, 0))]

    def is_frozen(name: str) -> bool:
        return name.startswith(tuple(parts)) if parts else False

    grads = gradients(model, torch.randn(2, 3, 40, 56))
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad != is_frozen(name), name
        assert (grads[name] is None) == is_frozen(name), name
    for name, module in model.named_modules():
        if name:
            assert module.training != is_frozen(f'{name}.'), name
    for name, value in model.state_dict().items():
        changed = not torch.equal(value, before[name])
        assert not (changed and is_frozen(name)), name


def test_freezing_everything_leaves_no_gradient(case: Case) -> None:
    count = len(build(case).stages)
    model = build(case, frozen_stages=count)
    assert not any(p.requires_grad for p in model.parameters())
    assert not any(m.training for name, m in model.named_modules() if name.startswith('stages.'))
    with pytest.raises(ValueError, match=f'frozen_stages={count + 99}, but there are'):
        build(case, frozen_stages=count + 99)


def test_norm_eval(case: Case) -> None:
    model = build(case, norm_eval=True)
    model.eval()
    model.train()
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    assert not any(m.training for m in norms)
    assert model.stages[0].training
    before = [m.running_mean.clone() for m in norms]
    model(torch.randn(2, 3, 40, 40))
    assert all(torch.equal(m.running_mean, mean) for m, mean in zip(norms, before, strict=True))


def test_checkpointing_gives_equal_outputs_and_gradients(case: Case) -> None:
    plain, recomputing = (build(case, with_cp=cp, drop_path_rate=0.5) for cp in (False, True))
    x = torch.randn(3, 3, 40, 56)
    expected, got = gradients(plain, x), gradients(recomputing, x)
    for name, grad in expected.items():
        torch.testing.assert_close(got[name], grad, rtol=0, atol=1e-7, msg=name)
    for (name, a), b in zip(
        plain.state_dict().items(), recomputing.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7, msg=name)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize('with_head', [False, True])
def test_autocast_is_finite_with_large_activations(
    case: Case, dtype: torch.dtype, with_head: bool
) -> None:
    """Images a thousand times too bright, and products of q and k beyond float16's range."""
    model = build(case, num_classes=3 if with_head else 0).eval()
    with torch.no_grad():
        for name, layer in model.named_modules():
            if name.endswith('.qkv'):
                layer.weight *= 2e4
    with torch.autocast('cpu', dtype):
        outputs = model(torch.randn(2, 3, 40, 56) * 1000)
    for y in outputs if isinstance(outputs, tuple) else (outputs,):
        assert y.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_autocast_stays_near_full_precision_and_trains(case: Case, dtype: torch.dtype) -> None:
    model = build(case).eval()
    x = torch.randn(2, 3, 40, 56)
    with torch.autocast('cpu', dtype):
        outputs = model(x)
        loss = total(outputs)
    loss.backward()
    for y, expected in zip(outputs, model(x), strict=True):
        assert (y - expected).abs().max() <= 0.05 * expected.abs().max()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(('dtype', 'bound'), [(torch.float64, 1e-4), (torch.bfloat16, 0.1)])
def test_models_of_another_dtype(case: Case, dtype: torch.dtype, bound: float) -> None:
    model = build(case).eval()
    x = torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        expected = model(x)
        for y, reference in zip(model.to(dtype)(x.to(dtype)), expected, strict=True):
            assert y.dtype == dtype
            assert (y - reference).abs().max() <= bound * reference.abs().max()


def test_state_dict_does_not_depend_on_the_image(case: Case) -> None:
    model = build(case).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        for size in ((40, 56), (97, 33)):
            model(torch.randn(1, 3, *size))
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    build(case).load_state_dict(after)


def test_deterministic(case: Case) -> None:
    x = torch.randn(2, 3, 40, 56)
    first, second = (gradients(build(case, drop_path_rate=0.3), x) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    model = build(case).eval()
    with torch.no_grad():
        for y, again in zip(model(x), model(x), strict=True):
            assert torch.equal(y, again)


def test_copies_compute_the_same(case: Case) -> None:
    model = build(case, frozen_stages=1).eval()
    x = torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        expected = model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            for y, same in zip(other(x), expected, strict=True):
                assert torch.equal(y, same)
            assert not any(p.requires_grad for p in other.embed.parameters())


def test_no_warnings(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        model = build(case, with_cp=True, num_classes=2)
        gradients(model, torch.randn(2, 3, 53, 37))
        copy.deepcopy(model)


def test_first_call_in_inference_mode_leaves_training_possible(case: Case) -> None:
    model = build(case)
    x = torch.randn(2, 3, 72, 104)  # A size of its own, so that no table is there yet.
    with torch.inference_mode():
        model(x)
    assert without_gradient(model, x) == []


@pytest.mark.slow
@pytest.mark.parametrize('label', [label for label in ARCHS if ' ' not in label])
def test_compiles_into_one_graph_of_any_size(label: str) -> None:
    name, arch = label, ARCHS[label]
    shallow = {'depths': [1, 1, 1]} if 'depths' in arch else {'depth': 1}
    model = getattr(models, name)(arch={**arch, **shallow}, out_indices=(-1,)).eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend='eager', dynamic=True)
    with torch.no_grad():
        for size in ((40, 56), (72, 88)):
            x = torch.randn(1, 3, *size)
            torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=5e-6)


def test_in_channels_and_meta_device(case: Case) -> None:
    model = build(case, in_channels=5)
    assert len(model(torch.randn(2, 5, 40, 40))) == 3
    with torch.device('meta'):
        meta = getattr(models, case[0])(arch=case[1], in_channels=5, out_indices=(0, 1, 2))
    shapes = {key: value.shape for key, value in meta.state_dict().items()}
    assert shapes == {key: value.shape for key, value in model.state_dict().items()}
