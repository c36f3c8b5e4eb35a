from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.model import BaseTTAModel
from torch import nn

from mmspatial.apis import UserError, report_errors
from mmspatial.apis.checkpoints import check_matches, find_last, read_checkpoint
from mmspatial.compat.checkpoint import CheckpointError


def save(path: Path, value: float) -> None:
    torch.save({'state_dict': {'weight': torch.tensor(value)}, 'meta': {}}, path)


def test_last_checkpoint_is_found_in_a_moved_work_dir(tmp_path: Path) -> None:
    save(tmp_path / 'iter_9.pth', 9)
    save(tmp_path / 'iter_10.pth', 10)
    save(tmp_path / 'best_mIoU_iter_20.pth', 20)
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/iter_10.pth')
    path, checkpoint = find_last(str(tmp_path))
    assert Path(path).name == 'iter_10.pth'
    assert checkpoint['state_dict']['weight'] == 10


def test_truncated_last_checkpoint_falls_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / 'epoch_1.pth', 1)
    save(tmp_path / 'epoch_2.pth', 2)
    whole = (tmp_path / 'epoch_2.pth').read_bytes()
    (tmp_path / 'epoch_2.pth').write_bytes(whole[: len(whole) // 2])
    (tmp_path / 'last_checkpoint').write_text('epoch_2.pth')
    assert Path(find_last(str(tmp_path))[0]).name == 'epoch_1.pth'
    assert 'epoch_2.pth' in capsys.readouterr().out


def test_without_a_readable_checkpoint(tmp_path: Path) -> None:
    assert find_last(str(tmp_path)) is None
    (tmp_path / 'iter_1.pth').write_bytes(b'no checkpoint')
    with pytest.raises(CheckpointError, match='iter_1'):
        find_last(str(tmp_path))


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / 'list.pth')
    with pytest.raises(CheckpointError, match='no weights'):
        read_checkpoint(str(tmp_path / 'list.pth'))
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / 'bare.pth')
    assert set(read_checkpoint(str(tmp_path / 'bare.pth'))['state_dict']) == {'weight', 'bias'}


def test_weights_of_another_model_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = model.state_dict()
    check_matches(model, {f'module.{key}': value for key, value in state.items()}, 'a.pth')
    counter = '1.num_batches_tracked'
    check_matches(model, {k: v for k, v in state.items() if k != counter}, 'a.pth')

    with pytest.raises(UserError, match=r'missing in the file: 0\.weight(?s:.*)not in.*: x'):
        check_matches(model, {**{k: v for k, v in state.items() if k != '0.weight'}, 'x': 1}, 'a')
    wide = {**state, '0.weight': torch.zeros(4, 2)}
    with pytest.raises(UserError, match=r'another shape: 0\.weight \(4, 2\), not \(3, 2\)'):
        check_matches(model, wide, 'a.pth')


class Detector(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Linear(2, 3)
        self.head = nn.Linear(3, classes)

    def test_step(self) -> None:
        """Do nothing: MMEngine's wrapper asks for the method."""


def test_a_start_needs_the_backbone_and_warns_of_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, state = Detector(5), Detector(4).state_dict()
    check_matches(model, state, 'a.pth', to_start=True)
    warning = capsys.readouterr().err
    assert warning.count('\n') == 1
    assert "'a.pth' has the backbone; 2 of 4 weights" in warning
    assert 'head.bias, head.weight' in warning
    check_matches(model, model.state_dict(), 'a.pth', to_start=True)
    assert not capsys.readouterr().err

    del state['backbone.bias']
    with pytest.raises(UserError, match=r'backbone\.bias(?s:.*)--backbone-weights'):
        check_matches(model, state, 'a.pth', to_start=True)
    bare = model.backbone.state_dict()
    with pytest.raises(UserError, match=r'missing in the file: backbone\.weight'):
        check_matches(model, bare, 'a.pth', to_start=True)


class Wrapper(nn.DataParallel):
    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module


class Averaging(BaseTTAModel):
    def merge_preds(self, data_samples_list: list[Any]) -> list[Any]:
        return data_samples_list


@pytest.mark.parametrize('wrappers', [(), (Wrapper,), (Averaging,), (Averaging, Wrapper)])
def test_models_are_compared_inside_all_wrappers(wrappers: tuple[type, ...]) -> None:
    model: nn.Module = Detector(4)
    for wrapper in wrappers:
        model = wrapper(model)
    check_matches(model, Detector(4).state_dict(), 'a.pth')
    with pytest.raises(UserError, match=r'head\.weight \(5, 3\), not \(4, 3\)'):
        check_matches(model, Detector(5).state_dict(), 'a.pth')


@pytest.mark.parametrize('error', [UserError, CheckpointError])
def test_errors_end_with_one_message(
    error: type[RuntimeError], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, report_errors():
        raise error('what is wrong')
    assert caught.value.code == 2
    assert capsys.readouterr().err == 'error: what is wrong\n'


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match='a bug'), report_errors():
        raise RuntimeError('a bug')


def test_help_does_not_import_torch() -> None:
    code = (
        'import sys, mmspatial.apis.options as o\n'
        'try: o.parse_train_args(["--help"])\n'
        'except SystemExit: sys.exit("torch" in sys.modules or "mmengine" in sys.modules)'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert '--backbone' in done.stdout
