"""`tools/export_onnx.py`: files that compute what the model does, at sizes that were not seen."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from _pytest.mark import ParameterSet
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmseg.models import build_segmentor
from mmseg.models.utils import Upsample
from tiny import run_tool, write_config
from torch import Tensor, nn

from mmspatial import build_backbone, list_backbones
from mmspatial.apis import export
from mmspatial.apis.errors import UserError

ONNX = ('onnx', 'onnxscript', 'onnxruntime')
needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ONNX)), reason='ONNX needs the extra `onnx`'
)

PYRAMID = dict(embed_dims=(8, 8, 16, 16), depths=2, num_heads=(1, 1, 2, 2))
PLAIN = dict(embed_dims=16, depth=2, num_heads=2, patch_size=16, img_size=64)
SWIN = dict(embed_dims=(8, 16), depths=(2, 2), num_heads=(1, 2), mlp_ratios=(2, 2), patch_size=4,
            decay_range=(4, 4))  # fmt: skip
ONE_STAGE = dict(embed_dims=(8,), depths=(1,), num_heads=(1,), mlp_ratios=(2,), decay_range=(4,),
                 group_sizes=(49,))  # fmt: skip
EVERY = {
    'rmt': ('RMT', dict(arch=PYRAMID)),
    'rmt-plain': ('RMT', dict(arch=PLAIN)),
    'rmt-swin': ('RMT', dict(arch=dict(SWIN, decomposed=(True, False)))),
    'evt': ('EVT', dict(arch=PYRAMID)),
    'evt-rotary': ('EVT', dict(arch=dict(ONE_STAGE), rope=True, conv_ffn=True)),
    'evt-swin': ('EVT', dict(arch=dict(SWIN, group_sizes=(49, 49)))),
    'sdt': ('SDT', dict(arch=PYRAMID)),
    'sdt-plain': ('SDT', dict(arch=PLAIN)),
    'vit': ('ViT', dict(arch=PLAIN)),
    'locatvit': ('LocAtViT', dict(arch=dict(PLAIN, num_registers=2), out_indices=(0, 1))),
    'locatvit-rotary': ('LocAtViT', dict(arch=dict(PLAIN, pos_embed='rotary'))),
    'locatswin': ('LocAtSwin', dict(out_indices=(0, 1), arch=dict(
        embed_dims=8, depths=(2, 2), num_heads=(1, 2), window_size=7, img_size=224))),
    'aliasfree': ('AliasFreeViT', dict(arch=PLAIN)),
    'aliasfree-p8': ('AliasFreeViT', dict(arch=dict(PLAIN, patch_size=8))),
}  # fmt: skip


def build(name: str) -> nn.Module:
    kind, options = EVERY[name]
    model = build_backbone(kind, **options).eval()
    for parameter in model.parameters():
        if kind == 'AliasFreeViT':
            # With weights as below, float32 itself is 7e-4 off float64, beyond what is checked.
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
        else:
            # Far from where attention is nearly uniform, and biases nearly nothing.
            nn.init.normal_(parameter, std=0.3)
    return model


def read(file: Path) -> Callable[[Tensor], list[Tensor]]:
    if file.suffix == '.pt2':
        return torch.export.load(file).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    return lambda x: [torch.from_numpy(y) for y in session.run(None, {'image': x.numpy()})]


def check(model: nn.Module, computed: Callable[[Tensor], list[Tensor]]) -> None:
    """Compare at sizes of our own: tiny, odd, and larger than any that export itself takes."""
    for shape in ((1, 3, 33, 47), (3, 3, 75, 301)):
        x = torch.randn(shape)
        with torch.no_grad():
            wanted = model(x)
            found = computed(x)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * b.abs().max().item())


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    monkeypatch.setattr(export, 'warn', refuse)


@needs_onnx
@pytest.mark.usefixtures('no_fallback')
def test_position_embedding_as_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An implementation that is asked for does not get into the file."""
    import onnxruntime

    monkeypatch.setenv('MMSPATIAL_IMPL', 'chunked')
    model = build_backbone('LocAtViT', arch=dict(PLAIN, depth=1), impl='chunked').eval()
    export.write(model, tmp_path / 'vit.onnx', 'onnx', description='words')
    check(model, read(tmp_path / 'vit.onnx'))
    session = onnxruntime.InferenceSession(tmp_path / 'vit.onnx')
    assert session.get_modelmeta().custom_metadata_map['description'] == 'words'
    assert session.get_inputs()[0].shape == ['batch', 3, 'height', 'width']
    assert [output.name for output in session.get_outputs()] == ['output']


def of_a_backbone(name: str, kind: str) -> ParameterSet:
    """Leave all but one to those who ask: a minute or more for each."""
    first = (name, kind) == ('evt', 'onnx')
    marks = [pytest.mark.slow if first else pytest.mark.exhaustive]
    return pytest.param(name, kind, marks=[*marks, needs_onnx] if kind == 'onnx' else marks)


@pytest.mark.usefixtures('no_fallback')
@pytest.mark.parametrize(
    ('name', 'kind'), [of_a_backbone(name, kind) for name in EVERY for kind in ('onnx', 'torch')]
)
def test_every_backbone(name: str, kind: str, tmp_path: Path) -> None:
    model = build(name)
    out = tmp_path / f'model{export.SUFFIXES[kind]}'
    export.write(model, out, kind)
    check(model, read(out))


def test_no_backbone_is_left_out() -> None:
    assert {kind for kind, _ in EVERY.values()} == set(list_backbones())


@pytest.mark.parametrize('bins', [1, 2, 3, 6, (2, 5)])
@pytest.mark.parametrize('size', [(1, 1), (7, 12), (3, 4), (16, 5)])
def test_pooling_by_matrices(size: tuple[int, int], bins: int | tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size)
    torch.testing.assert_close(export.BinAverage(bins)(x), nn.AdaptiveAvgPool2d(bins)(x))


class HostLayers(nn.Module):
    """What heads of mmseg are made of that PyTorch would capture for one size only."""

    def __init__(self) -> None:
        super().__init__()
        self.up = Upsample(scale_factor=2, mode='bilinear', align_corners=False)
        self.pool = nn.AdaptiveAvgPool2d(6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map ``(B, C, H, W)`` to twice its size, and to 6 x 6."""
        return self.up(x), self.pool(x)


@pytest.mark.usefixtures('no_fallback')
def test_layers_of_heads(tmp_path: Path) -> None:
    export.write(HostLayers(), tmp_path / 'layers.pt2', 'torch')
    check(HostLayers(), read(tmp_path / 'layers.pt2'))


def small_segmentor(tmp_path: Path) -> str:
    """Write a config with one stage, whose groups need padding, and a linear head."""
    base = write_config(tmp_path, 'seg')
    file = tmp_path / 'linear_seg.py'
    file.write_text(f"""
_base_ = ['{base}']
model = dict(
    backbone=dict(arch=dict(
        _delete_=True, embed_dims=(8,), depths=(1,), num_heads=(1,), mlp_ratios=(2,),
        decay_range=(4,), group_sizes=(49,))),
    decode_head=dict(
        _delete_=True, type='mmspatial.LinearHead', in_channels=8, in_index=0, num_classes=5,
        align_corners=False),
    auxiliary_head=None,
)
""")
    return str(file)


def check_segmentor(config: str, checkpoint: Path, file: Path) -> None:
    """Compare with mmseg's own inference on whole images."""
    cfg = Config.fromfile(config)
    init_default_scope('mmseg')
    model = build_segmentor(cfg.model).eval()
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    for height, width in ((64, 96), (75, 101)):
        x = torch.randn(1, 3, height, width)
        metas = [dict(img_shape=(height, width), ori_shape=(height, width))]
        with torch.no_grad():
            wanted = model.encode_decode(x, metas)
        (found,) = read(file)(x)
        assert found.shape[2:] == (height, width)
        atol = 1e-4 * wanted.abs().max().item()
        torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


def save_weights(config: str, file: Path) -> Path:
    cfg = Config.fromfile(config)
    init_default_scope('mmseg')
    model = build_segmentor(cfg.model)
    for name, buffer in model.named_buffers():
        if name.endswith('running_var'):
            buffer.uniform_(0.5, 2)
    torch.save({'state_dict': model.state_dict(), 'meta': {}}, file)
    return file


@pytest.mark.usefixtures('no_fallback')
def test_a_segmentor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_segmentor(tmp_path)
    weights = save_weights(config, tmp_path / 'weights.pth')
    out = tmp_path / 'new' / 'seg.pt2'
    run_tool('export_onnx', config, weights, out)
    check_segmentor(config, weights, out)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4] == f"written: '{out}'"
    assert lines[-3].startswith('input: images (B, C, H, W), RGB, minus mean [123.675, ')
    assert '1 image(s) of 160 x 192: ' in lines[-2]
    assert '2 image(s) of 125 x 173: ' in lines[-1]


@needs_onnx
@pytest.mark.slow
@pytest.mark.usefixtures('no_fallback')
def test_a_segmentor_with_pyramid_pooling(tmp_path: Path) -> None:
    config = write_config(tmp_path, 'seg')
    weights = save_weights(config, tmp_path / 'weights.pth')
    run_tool('export_onnx', config, weights, tmp_path / 'seg.onnx')
    check_segmentor(config, weights, tmp_path / 'seg.onnx')


class OfOneSize(nn.Module):
    """Branches on the size, as no graph for all sizes can."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Map ``(B, C, H, W)`` to one of two things."""
        return (x + 1 if x.shape[2] % 2 else x * 2,)


def test_a_fixed_size_is_the_fallback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = export.write(OfOneSize(), tmp_path / 'one.pt2', 'torch')
    assert lines == ['compared with the model on 1 image(s) of 256 x 320: 0.0e+00 of the largest '
                     'value']  # fmt: skip
    assert 'cannot be exported for images of any size' in capsys.readouterr().err
    lines = export.write(OfOneSize(), tmp_path / 'one.pt2', 'torch', fixed=(5, 7))
    x = torch.randn(1, 3, 5, 7)
    assert torch.equal(torch.export.load(tmp_path / 'one.pt2').module()(x)[0], x + 1)


class Forgetful(nn.Module):
    """Computes something else whenever it is captured."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Map a tensor to another one."""
        return (x * 2 if torch.compiler.is_exporting() else x,)


def test_a_file_that_differs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='computes something else'):
        export.write(Forgetful(), tmp_path / 'x.pt2', 'torch', fixed=(5, 7))
    assert not (tmp_path / 'x.pt2').exists()


def break_imports(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.import_module

    def import_module(name: str) -> ModuleType:
        if name in names:
            raise ModuleNotFoundError(name=name)
        return real(name)

    monkeypatch.setattr(importlib, 'import_module', import_module)


@pytest.mark.parametrize(
    ('kind', 'words', 'message'),
    [
        ('det', [], "of type 'MaskRCNN' only the backbone can be exported: --part backbone"),
        ('seg', ['model.bin'], "OUT 'model.bin' must end with .onnx or .pt2"),
        ('seg', ['m.onnx', '--format', 'torch'], '--format torch writes .pt2 files'),
        (
            'seg',
            ['m.onnx'],
            'ONNX needs onnx, onnxscript, onnxruntime: pip install onnx onnx',
        ),
    ],
)
def test_mistakes_are_explained(
    kind: str,
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if 'needs' in message:
        break_imports(monkeypatch, *ONNX)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        run_tool('export_onnx', write_config(tmp_path, kind), 'none', *words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
