"""Safe loading: MMEngine's real checkpoints pass, whatever could execute code does not."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmengine.runner import checkpoint as runner_checkpoint
from torch import Tensor
from torch.utils.data import Dataset

from mmspatial.compat.checkpoint import TRUST_VARIABLE, CheckpointError, load_file


class Calling:
    """Pickle as a call of any function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


class Points(Dataset):
    def __init__(self) -> None:
        self.metainfo = {'classes': ('a', 'b'), 'palette': [(1, 2, 3), (4, 5, 6)]}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {'inputs': torch.full((3,), float(index)), 'data_samples': float(index % 3)}


class Line(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))

    def forward(
        self, inputs: Tensor, data_samples: Tensor, mode: str = 'tensor'
    ) -> dict[str, Tensor]:
        return {'loss': (self.layer(inputs).sum(1) - data_samples).square().mean()}


def train(work_dir: Path, resume_from: Path | None = None) -> Runner:
    """Train with everything that leaves unusual objects in a checkpoint: all kinds of schedules,
    an averaged model, log histories.
    """
    torch.manual_seed(0)
    steps = {'by_epoch': False}
    runner = Runner(
        model=Line(),
        work_dir=str(work_dir),
        train_dataloader={
            'batch_size': 4,
            'collate_fn': {'type': 'default_collate'},
            'sampler': {'type': 'InfiniteSampler', 'shuffle': True},
            'dataset': Points(),
        },
        train_cfg={'type': 'IterBasedTrainLoop', 'max_iters': 4},
        optim_wrapper={'optimizer': {'type': 'AdamW', 'lr': 0.01}},
        param_scheduler=[
            {'type': 'OneCycleLR', 'eta_max': 0.1, 'total_steps': 8, **steps},
            {'type': 'MultiStepMomentum', 'milestones': [1, 3], **steps},
            {'type': 'PolyLR', 'eta_min': 1e-5, 'end': 8, **steps},
        ],
        default_hooks={
            'checkpoint': {'type': 'CheckpointHook', 'interval': 2, **steps},
            'logger': {'type': 'LoggerHook', 'interval': 1},
        },
        custom_hooks=[{'type': 'EMAHook'}],
        randomness={'seed': 0},
        default_scope='mmengine',
        experiment_name=work_dir.name,
        load_from=resume_from and str(resume_from),
        resume=resume_from is not None,
        log_level='ERROR',
        cfg=Config({'work_dir': str(work_dir)}),
    )
    runner.train()
    return runner


@pytest.fixture(scope='module')
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An uninterrupted run of 4 steps, and one that continues it from step 2."""
    torch.set_num_threads(1)
    first, second = (tmp_path_factory.mktemp(name) for name in ('first', 'second'))
    whole = train(first)
    return {'folder': first, 'whole': whole, 'resumed': train(second, first / 'iter_2.pth')}


def same(a: object, b: object) -> bool:
    """Compare nested values, tensors and histories among them."""
    if isinstance(a, HistoryBuffer):
        return isinstance(b, HistoryBuffer) and same(a.__dict__, b.__dict__)
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and a == b


@pytest.mark.smoke
def test_mmengine_checkpoint_loads_safely_and_whole(
    runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = runs['folder'] / 'iter_4.pth'
    safe = load_file(path)
    assert {'meta', 'state_dict', 'message_hub', 'optimizer', 'param_schedulers'} <= safe.keys()
    history = safe['message_hub']['log_scalars']['train/loss']
    assert isinstance(history, HistoryBuffer)
    assert len(history.data[0]) == 4
    assert same(safe, torch.load(path, weights_only=False))


@pytest.mark.smoke
def test_resume_continues_exactly(runs: dict[str, Any]) -> None:
    whole, resumed = runs['whole'], runs['resumed']
    assert resumed.iter == 4
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key]), key
    assert same(whole.optim_wrapper.state_dict(), resumed.optim_wrapper.state_dict())
    losses = [run.message_hub.get_scalar('train/loss').data[0].tolist() for run in (whole, resumed)]
    # A checkpoint is written before its own step is logged to the history of the message hub.
    assert losses[0][-2:] == losses[1][-2:]


def test_checkpoint_written_under_the_other_numpy(runs: dict[str, Any], tmp_path: Path) -> None:
    old, new = b'numpy.core.multiarray', b'numpy._core.multiarray'
    source, other = runs['folder'] / 'iter_4.pth', tmp_path / 'other.pth'
    with zipfile.ZipFile(source) as given, zipfile.ZipFile(other, 'w') as written:
        for name in given.namelist():
            data = given.read(name)
            if name.endswith('data.pkl'):
                assert (new in data) != (old in data)
                data = data.replace(new, old) if new in data else data.replace(old, new)
            written.writestr(name, data)
    assert same(load_file(source), load_file(other))


UNSAFE = {
    'os.system': (lambda mark: Calling(os.system, f'touch {mark}'), r"'(posix|nt)\.system'"),
    'eval': (lambda mark: Calling(eval, f'open({str(mark)!r}, "w")'), "'eval'"),
    'getattr': (lambda mark: Calling(getattr, HistoryBuffer, '__init__'), r"'getattr\(.*__init__"),
    'getattr of a value': (lambda mark: Calling(getattr, {}, 'keys'), r"'getattr\(.*keys"),
    'class': (lambda mark: torch.nn.Linear(1, 1), r"'torch\.nn\.modules\.linear\.Linear'"),
    'defaultdict': (lambda mark: defaultdict(int), r"'collections\.defaultdict'"),
    'objects in numpy': (lambda mark: np.array([1, 'a'], dtype=object), 'ObjectDType'),
}


@pytest.mark.smoke
@pytest.mark.parametrize('kind', UNSAFE)
def test_unsafe_object_is_named_and_not_executed(tmp_path: Path, kind: str) -> None:
    make, words = UNSAFE[kind]
    mark, path = tmp_path / 'mark', tmp_path / 'unsafe.pth'
    torch.save({'state_dict': {'x': make(mark)}}, path)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_file(path)
    message = str(caught.value)
    assert '\n' not in message
    assert '--trust-checkpoint' in message
    assert TRUST_VARIABLE + '=1' in message
    assert not mark.exists()


@pytest.mark.parametrize('legacy', [True, False])
def test_unsafe_file_through_every_door_of_mmengine(
    tmp_path: Path, legacy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, path = tmp_path / 'mark', tmp_path / 'unsafe.pth'
    evil = {'x': Calling(os.system, f'touch {mark}')}
    torch.save(evil, path, _use_new_zipfile_serialization=not legacy)
    # What PyTorch finds in its cache, it does not download.
    cache = tmp_path / 'checkpoints'
    cache.mkdir()
    (cache / 'unsafe.pth').write_bytes(path.read_bytes())
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    for source in (str(path), 'https://example.invalid/unsafe.pth'):
        with pytest.raises(CheckpointError, match=r'\.system'):
            runner_checkpoint.CheckpointLoader.load_checkpoint(source, 'cpu', logger='silent')
    if hasattr(runner_checkpoint, '_safe_torch_load'):
        with pytest.raises(pickle.UnpicklingError):
            runner_checkpoint._safe_torch_load(str(path), weights_only=False)
    assert not mark.exists()


@pytest.mark.smoke
def test_safe_file_through_the_doors_of_mmengine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {'x': torch.randn(3), 'y': torch.arange(4)}
    (tmp_path / 'checkpoints').mkdir()
    torch.save(weights, tmp_path / 'checkpoints' / 'a.pth')
    safetensors.torch.save_file(weights, tmp_path / 'a.safetensors')
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    monkeypatch.setenv('HOME', str(tmp_path))
    for source in ('https://example.invalid/a.pth', '~/checkpoints/a.pth', '~/a.safetensors'):
        loaded = runner_checkpoint.CheckpointLoader.load_checkpoint(source, logger='silent')
        assert same(loaded, weights)


@pytest.mark.parametrize('legacy', [True, False])
def test_a_trusted_file_may_do_as_it_likes(
    tmp_path: Path, legacy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, path = tmp_path / 'mark', tmp_path / 'trusted.pth'
    evil = {'x': Calling(os.system, f'touch {mark}')}
    torch.save(evil, path, _use_new_zipfile_serialization=not legacy)
    monkeypatch.setenv(TRUST_VARIABLE, '1')
    assert load_file(path) == {'x': 0}
    assert mark.exists()


@pytest.mark.smoke
@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
@pytest.mark.parametrize('damage', ['half', 'tail', 'empty', 'page', 'pickle'])
def test_damaged_file_says_so_with_its_size(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f'damaged{suffix}'
    save = torch.save if suffix == '.pth' else safetensors.torch.save_file
    save({'x': torch.ones(1000)}, path)
    whole = path.read_bytes()
    data = {
        'half': whole[: len(whole) // 2],
        'tail': whole[:-30],
        'empty': b'',
        'page': b'<html><body>404: not found</body></html>',
        'pickle': pickle.dumps({'x': 1}),
    }[damage]
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        load_file(path)
    message = str(caught.value)
    assert f'({len(data):,} bytes) is truncated or no checkpoint at all' in message
    assert str(path) in message
    assert '\n' not in message


def test_other_archives_are_no_checkpoints(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / 'other.pth', 'w') as archive:
        archive.writestr('x.txt', 'words')
    with pytest.raises(CheckpointError, match='no checkpoint at all'):
        load_file(tmp_path / 'other.pth')


@pytest.mark.parametrize('name', ['missing.pth', '.'])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r'does not exist or is no file'):
        load_file(tmp_path / name)


def test_map_location_reaches_both_formats(tmp_path: Path) -> None:
    weights = {'x': torch.ones(3)}
    torch.save(weights, tmp_path / 'a.pth')
    safetensors.torch.save_file(weights, tmp_path / 'a.safetensors')
    assert load_file(tmp_path / 'a.pth', 'meta')['x'].is_meta
    for where in ('cpu', torch.device('cpu'), None, {'cuda:0': 'cpu'}):
        for name in ('a.pth', 'a.safetensors'):
            assert load_file(str(tmp_path / name), where)['x'].device.type == 'cpu'
