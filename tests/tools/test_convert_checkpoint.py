from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspatial import build_backbone, load_weights
from mmspatial.compat.checkpoint import load_file

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / 'tests' / 'data' / 'golden'
SCHEMES = {
    'rmt_decomposed2_layerscale': 'rmt', 'rmt_decomposed3': 'rmt', 'locatvit': 'timm-vit',
    'locatvit_registers': 'timm-vit', 'locatvit_nopos': 'timm-vit', 'locatswin': 'timm-swin',
    'afvit_p16': 'alias-free', 'afvit_p8': 'alias-free',
}  # fmt: skip
StateDict = dict[str, Tensor]


@pytest.fixture(scope='module')
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        'convert_checkpoint', ROOT / 'tools' / 'convert_checkpoint.py'
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def official(name: str) -> StateDict:
    return {
        key.removeprefix('weights/'): value
        for key, value in load_file(GOLDEN / f'{name}.safetensors').items()
        if key.startswith('weights/')
    }


def tensors(path: Path) -> StateDict:
    content = load_file(path)
    return content.get('model', content.get('state_dict', content))


def equal(a: StateDict, b: StateDict) -> bool:
    return a.keys() == b.keys() and all(
        a[key].dtype == b[key].dtype and torch.equal(a[key], b[key]) for key in a
    )


def failure(tool: ModuleType, capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """Return the one line of an error."""
    with pytest.raises(SystemExit) as error:
        tool.main([str(word) for word in argv])
    assert error.value.code == 2
    out, err = capsys.readouterr()
    assert out == ''
    assert re.fullmatch(r'error: [^\n]+\n', err), err
    return err


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
@pytest.mark.parametrize('name', SCHEMES)
def test_there_and_back_changes_nothing(
    tool: ModuleType, tmp_path: Path, name: str, suffix: str
) -> None:
    state = official(name)
    state['patch_embed.proj.0.1.weight' if 'afvit' in name else next(iter(state))].neg_()
    source = tmp_path / 'official.pth'
    torch.save({'model': state, 'epoch': 3}, source)
    ours, back = tmp_path / f'ours{suffix}', tmp_path / f'back{suffix}'
    tool.main([str(source), str(ours)])
    assert all(
        key.startswith(('embed.', 'stages.', 'downsamples.', 'out_norms.', 'norm.', 'head.'))
        for key in tensors(ours)
    )
    tool.main([str(ours), str(back), '--to', SCHEMES[name]])
    assert equal(tensors(back), state)


def test_half_precision_stays(tool: ModuleType, tmp_path: Path) -> None:
    state = {key: value.half() for key, value in official('rmt_decomposed3').items()}
    save_file(state, tmp_path / 'half.safetensors')
    tool.main([str(tmp_path / 'half.safetensors'), str(tmp_path / 'ours.safetensors')])
    tool.main([str(tmp_path / 'ours.safetensors'), str(tmp_path / 'back.pt'), '--to', 'rmt'])
    assert equal(tensors(tmp_path / 'back.pt'), state)


def test_what_is_written_loads_with_pytorch_alone(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / 'rmt.safetensors'
    save_file(official('rmt_decomposed2_layerscale'), source)
    tool.main([str(source), str(tmp_path / 'ours.pth')])
    out = capsys.readouterr().out
    assert out.startswith(f"read '{source}': RMT release names, 203 tensors, 186,287 numbers\n")
    assert "ours.pth': mmspatial names, 171 tensors, 186,223 numbers\n" in out
    assert '\n  stages.2        40 tensors, 53,760 numbers\n' in out
    assert 'kept for the way back: 8 tensors, 64 numbers, layers.0.Relpos.angle' in out

    model = build_backbone('RMT', arch=_rmt_arch())
    weights = torch.load(tmp_path / 'ours.pth', weights_only=True)['state_dict']
    model.load_state_dict(weights, strict=True)
    expected = build_backbone('RMT', arch=_rmt_arch())
    load_weights(expected, official('rmt_decomposed2_layerscale'))
    assert equal(model.state_dict(), expected.state_dict())


def test_a_segmentors_checkpoint_gives_its_backbone(tool: ModuleType, tmp_path: Path) -> None:
    backbone = build_backbone('RMT', arch=_rmt_arch())
    whole = nn.ModuleDict({'backbone': backbone, 'decode_head': nn.Linear(2, 2)})
    torch.save({'state_dict': whole.state_dict(), 'meta': {}}, tmp_path / 'iter_9.pth')
    tool.main([str(tmp_path / 'iter_9.pth'), str(tmp_path / 'backbone.safetensors')])
    assert equal(tensors(tmp_path / 'backbone.safetensors'), backbone.state_dict())


def test_the_backbone_asked_for_is_checked(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / 'vit.pth', tmp_path / 'ours.pth'
    torch.save(build_backbone('LocAtViT').state_dict(), source)
    tool.main([str(source), str(target), '--backbone', 'locatvit', '--arch', 'tiny'])
    assert '\nfits LocAtViT tiny: 100.0% of the parameters loaded' in capsys.readouterr().out
    args = (source, tmp_path / 'other.pth', '--backbone')
    message = failure(tool, capsys, *args, 'LocAtViT', '--arch', 'small')
    assert 'does not fit LocAtViT: 0.' in message
    assert "did you mean 'locatvit'" in failure(tool, capsys, *args, 'locatvi')
    assert "LocAtViT has no arch 'tin'" in failure(tool, capsys, *args, 'locatvit', '--arch', 'tin')
    assert not (tmp_path / 'other.pth').exists()


def test_errors_are_one_line_and_nothing_is_written(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / 'rmt.pth', tmp_path / 'out.pth'
    torch.save(official('rmt_decomposed3'), source)
    torch.save({'fc.weight': torch.ones(2), 'fc.bias': torch.ones(2)}, tmp_path / 'other.pth')
    torch.save({'state_dict': nn.Linear}, tmp_path / 'unsafe.pth')
    (tmp_path / 'text.pth').write_text('hello')

    before = source.read_bytes()
    assert 'exists already' in failure(tool, capsys, source, source)
    assert source.read_bytes() == before
    cases: list[tuple[tuple[object, ...], str]] = [
        ((source, tmp_path / 'out.npz'), 'must end with one of .pth, .pt, .safetensors'),
        ((source, tmp_path / 'none' / 'out.pth'), 'there is no folder'),
        ((tmp_path / 'none.pth', target), 'does not exist'),
        (('https://a/b.pth', target), 'download the file first'),
        ((tmp_path / 'text.pth', target), 'truncated or no checkpoint'),
        ((tmp_path / 'unsafe.pth', target), 'could execute code'),
        ((tmp_path / 'other.pth', target), 'no names that mmspatial knows: fc.weight, fc.bias'),
        ((source, target, '--to', 'timm-vitt'), "did you mean 'timm-vit' or"),
        ((source, target, '--to', 'timm-vit'), 'timm ViT has no names for'),
        ((source, target, '--arch', 'tiny'), '--arch needs --backbone'),
    ]
    for argv, message in cases:
        assert message in failure(tool, capsys, *argv)
    assert not target.exists()


@pytest.mark.smoke
def test_the_command_itself(tmp_path: Path) -> None:
    source = tmp_path / 'afvit.safetensors'
    save_file(official('afvit_p8'), source)
    command = [sys.executable, ROOT / 'tools' / 'convert_checkpoint.py', source]
    done = subprocess.run([*command, tmp_path / 'ours.pth'], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, '')
    assert 'Alias-Free ViT release names' in done.stdout


def _rmt_arch() -> dict[str, object]:
    return dict(
        embed_dims=[16, 32, 48, 64], depths=[1, 2, 2, 1], num_heads=[2, 2, 4, 4],
        mlp_ratios=[4, 4, 3, 3], decomposed=[True, True, False, False],
        layer_scale=[None, None, 1e-6, 1e-6],
    )  # fmt: skip
