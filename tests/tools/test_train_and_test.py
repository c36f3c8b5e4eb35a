from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import TOOLS, forget_runs, losses, run_tool, write_config
from torch import nn

from mmspatial.apis.configs import read_config
from mmspatial.apis.images import read_image
from mmspatial.apis.inference import Predictor, load_model
from mmspatial.apis.options import parse_train_args
from mmspatial.apis.runner import blame_config
from mmspatial.apis.train import train
from mmspatial.models.fuse import fuse_for_inference

TENSORBOARD = 'visualizer.vis_backends.0.type=TensorboardVisBackend'


@pytest.fixture(scope='module')
def seg_run(ade20k: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Train the tiny segmentor for 4 iterations; return the config and the work dir."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp('seg')
    config = write_config(folder, 'seg')
    run_tool('train', config, '--data-root', ade20k, '--work-dir', folder / 'work')
    return config, folder / 'work'


@pytest.fixture(scope='module')
def det_run(coco: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp('det')
    config = write_config(folder, 'det')
    run_tool('train', config, '--data-root', coco, '--work-dir', folder / 'work')
    return config, folder / 'work'


def steps(optimizer: dict[str, Any]) -> set[int]:
    return {int(state['step']) for state in optimizer['state'].values()}


@pytest.mark.smoke
def test_resumed_segmentor_repeats_the_uninterrupted_run(
    seg_run: tuple[str, Path], ade20k: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, whole = seg_run
    # As if killed while writing iteration 4: its file is cut short. No seed was given either.
    shutil.copy(whole / 'iter_2.pth', tmp_path)
    (tmp_path / 'iter_4.pth').write_bytes((whole / 'iter_4.pth').read_bytes()[:5000])
    (tmp_path / 'last_checkpoint').write_text(str(whole / 'iter_4.pth'))
    run_tool('train', config, '--data-root', ade20k, '--work-dir', tmp_path, '--resume')

    wanted, resumed = losses(whole), losses(tmp_path)
    assert sorted(wanted) == [1, 2, 3, 4]
    assert sorted(resumed) == [3, 4]
    assert [resumed[i] for i in (3, 4)] == pytest.approx([wanted[i] for i in (3, 4)], abs=1e-5)
    assert 'iter_4.pth' in capsys.readouterr().out

    saved = [torch.load(folder / 'iter_4.pth', weights_only=True) for folder in (whole, tmp_path)]
    assert saved[1]['meta']['iter'] == 4
    assert steps(saved[1]['optimizer']) == steps(saved[0]['optimizer']) == {4}
    assert saved[1]['param_schedulers'] == saved[0]['param_schedulers']
    for key, value in saved[0]['state_dict'].items():
        torch.testing.assert_close(saved[1]['state_dict'][key], value, rtol=0, atol=1e-6)


def run_fused(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Note the models that `tools/test.py` folds."""
    folded = []

    def fuse(model: nn.Module) -> nn.Module:
        folded.append(fuse_for_inference(model))
        return folded[-1]

    monkeypatch.setattr('mmspatial.apis.fuse.fuse_for_inference', fuse)
    return folded


@pytest.mark.smoke
def test_segmentor_is_evaluated(
    seg_run: tuple[str, Path],
    ade20k: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, work = seg_run
    common = (config, work / 'iter_4.pth', '--data-root', ade20k, '--work-dir', tmp_path)
    run_tool('test', *common, '--out', tmp_path / 'metrics.json')
    metrics = json.loads((tmp_path / 'metrics.json').read_text())
    assert set(metrics) == {'aAcc', 'mIoU', 'mAcc'}
    assert f'mIoU  {metrics["mIoU"]:.4f}' in capsys.readouterr().out

    folder, shown = tmp_path / 'maps', tmp_path / 'shown'
    fused = run_fused(monkeypatch)
    run_tool('test', *common, '--fuse', '--out', folder, '--show-dir', shown)
    assert len(fused) == 1
    assert f'mIoU  {metrics["mIoU"]:.4f}' in capsys.readouterr().out
    names = sorted(file.stem for file in (ade20k / 'images/validation').iterdir())
    assert sorted(file.stem for file in folder.iterdir()) == names
    assert len([*shown.rglob('*.png'), *shown.rglob('*.jpg')]) == len(names)


@pytest.mark.smoke
def test_detector_trains_resumes_and_is_evaluated(
    det_run: tuple[str, Path], coco: Path, tmp_path: Path
) -> None:
    config, whole = det_run
    shutil.copy(whole / 'epoch_1.pth', tmp_path)
    common = ('--data-root', coco, '--work-dir', tmp_path)
    run_tool('train', config, *common, '--resume', tmp_path / 'epoch_1.pth')
    wanted, resumed = losses(whole), losses(tmp_path)
    assert resumed
    assert min(resumed) == len(wanted) // 2 + 1
    assert list(resumed.values()) == pytest.approx([wanted[i] for i in resumed], abs=1e-5)

    out = tmp_path / 'predictions.pkl'
    run_tool('test', config, whole / 'epoch_2.pth', *common, '--out', out)
    assert out.stat().st_size > 0


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a tool wrote to stderr, which must begin with one error and be short."""
    lines = [line for line in capsys.readouterr().err.splitlines() if 'OneDL' not in line]
    text = '\n'.join(lines)
    assert text.count('error: ') == 1
    assert 'Traceback' not in text
    assert len(lines) < 20
    return text


@pytest.mark.parametrize('tool', ['train', 'test'])
@pytest.mark.parametrize('kind', ['truncated', 'other', 'unsafe'])
def test_wrong_checkpoints_end_with_one_message(
    tool: str,
    kind: str,
    seg_run: tuple[str, Path],
    ade20k: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, work = seg_run
    file = tmp_path / f'{kind}.pth'
    if kind == 'truncated':
        file.write_bytes((work / 'iter_2.pth').read_bytes()[:3000])
    elif kind == 'unsafe':
        torch.save({'state_dict': {}, 'hook': subprocess.Popen}, file)
    else:
        whole = torch.load(work / 'iter_2.pth', weights_only=True)
        whole['state_dict'] = {
            key.replace('decode_head', 'head'): value for key, value in whole['state_dict'].items()
        }
        torch.save(whole, file)
    words = ('--resume', file) if tool == 'train' else (file,)
    with pytest.raises(SystemExit) as caught:
        run_tool(tool, config, *words, '--data-root', ade20k, '--work-dir', tmp_path)
    assert caught.value.code == 2
    expected = {'truncated': 'truncated', 'unsafe': 'Popen', 'other': 'decode_head.conv_seg'}
    assert expected[kind] in message(capsys)


@pytest.mark.parametrize(
    ('words', 'expected'),
    [
        (['--amp'], 'GPU'),
        (['--backbone', 'rmt_x'], 'rmt_s'),
        (['--backbone-weights', 'nowhere.pth'], 'nowhere.pth'),
        (['--cfg-options', 'model.decode_head.foo=1'], 'UPerHead of the config'),
        (['--cfg-options', 'model.backbone.drop_path_rate=x'], 'mmspatial.EVT of the config'),
        (['--cfg-options', 'model.backbone.arch.embed_dims=(16,16,32,48)'], 'in_channels='),
        (['--cfg-options', 'optim_wrapper.type=AmpOptimWrapper'], 'GPU'),
        (['--cfg-options', 'optim_wrapper.optimizer.type=Adammm'], "'Adam'"),
        (['--cfg-options', 'optim_wrapper.optimizer.lr=abc'], 'optim_wrapper cannot be built'),
        (['--cfg-options', 'train_cfg.max_iters=abc'], "train_cfg.*'abc'"),
        (['--cfg-options', 'param_scheduler.0.begin=x'], 'param_scheduler cannot be built'),
        (['--cfg-options', 'val_evaluator.type=Iou'], 'val_evaluator cannot.*Iou'),
        (['--cfg-options', TENSORBOARD], 'pip install.*tensorboard'),
        (['--cfg-options', 'load_from=http://localhost:9/x.pth'], 'localhost:9/x.pth.*download'),
        (['--backbone-weights', 'http://localhost:9/x.pth'], 'localhost:9/x.pth.*download'),
        (['--launcher', 'pytorch'], 'dist_train.sh'),
    ],
)
def test_wrong_options_end_with_one_message(
    words: list[str],
    expected: str,
    ade20k: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr('mmspatial.apis.runner.get_device', lambda: 'cpu')
    monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', None)
    config = write_config(tmp_path, 'seg')
    with pytest.raises(SystemExit) as caught:
        run_tool('train', config, '--data-root', ade20k, '--work-dir', tmp_path, *words)
    assert caught.value.code == 2
    assert re.search(expected, message(capsys))


def test_test_time_augmentation_averages_the_flips(
    seg_run: tuple[str, Path], ade20k: Path, tmp_path: Path
) -> None:
    config, work = seg_run
    common = ('--data-root', ade20k, '--work-dir', tmp_path, '--out', tmp_path / 'maps')
    run_tool('test', config, work / 'iter_4.pth', *common, '--tta', '--fuse')
    predictor = load_model(read_config(config), str(work / 'iter_4.pth'))
    changed = 0
    for file in (ade20k / 'images/validation').iterdir():
        image = read_image(file)
        plain, flipped = (probabilities(predictor, view) for view in (image, image[:, ::-1]))
        expected = (plain + flipped.flip(-1)).argmax(0).numpy()
        # The label maps are as ADE20K's: 0 stands for what has no label.
        found = np.array(Image.open(tmp_path / 'maps' / f'{file.stem}.png')) - 1
        assert (found == expected).mean() > 0.999
        changed += (expected != plain.argmax(0).numpy()).sum()
    assert changed


def probabilities(predictor: Predictor, image: np.ndarray) -> torch.Tensor:
    """Return those of all classes ``(K, H, W)``."""
    data = predictor.pipeline({'img': np.ascontiguousarray(image[..., ::-1]), 'img_id': 0})
    with torch.no_grad():
        sample = predictor.model.test_step({key: [value] for key, value in data.items()})[0]
    return sample.seg_logits.data.softmax(0)


def test_results_that_cannot_be_written_stop_an_evaluation_at_once(
    seg_run: tuple[str, Path], ade20k: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, work = seg_run
    common = (config, work / 'iter_4.pth', '--data-root', ade20k, '--work-dir', tmp_path / 'work')
    (tmp_path / 'file').touch()
    for option, place in (('--out', 'file/x.json'), ('--show-dir', 'file'), ('--work-dir', 'file')):
        with pytest.raises(SystemExit):
            run_tool('test', *common, option, tmp_path / place)
        assert f"{option}: '{tmp_path}" in message(capsys)
    assert not list(tmp_path.glob('work/*/*.log'))


def test_a_compiled_model_is_not_folded(
    seg_run: tuple[str, Path], ade20k: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, work = seg_run
    common = (config, work / 'iter_4.pth', '--data-root', ade20k, '--work-dir', tmp_path)
    with pytest.raises(SystemExit):
        run_tool('test', *common, '--fuse', '--cfg-options', 'compile=True')
    assert 'compile=False' in message(capsys)


def test_other_errors_while_a_runner_is_built_keep_their_traceback() -> None:
    with pytest.raises(ValueError, match='a bug'), blame_config('the config'):
        raise ValueError('a bug')


def test_a_data_set_without_any_of_the_classes_is_refused(
    coco: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path(write_config(tmp_path, 'det'))
    classes = "train_dataloader['dataset']['metainfo'] = dict(classes=('toaster', 'sink'))\n"
    config.write_text(config.read_text() + classes)
    with pytest.raises(SystemExit):
        run_tool('train', str(config), '--data-root', coco, '--work-dir', tmp_path)
    assert 'the data set is empty' in message(capsys)


def test_shipped_config_trains_with_another_backbone(
    ade20k: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real RMT-T, pipeline and head, on small crops; it logs to TensorBoard."""
    written: dict[str, dict[int, float]] = {}

    class SummaryWriter:
        """What MMEngine calls of TensorBoard's, which is not among what tests need."""

        def __init__(self, folder: str) -> None:
            assert Path(folder).is_relative_to(tmp_path)

        def add_text(self, tag: str, text: str) -> None:
            assert 'mmspatial.RMT' in text

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            written.setdefault(tag, {})[step] = value

        def close(self) -> None:
            pass

    module = ModuleType('tensorboard')
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', module)
    forget_runs()
    size = '(32,32)'
    pipeline = 'train_dataloader.dataset.pipeline'
    args = parse_train_args(
        [
            'semfpn_evt_s_ade20k',
            *('--backbone', 'rmt_t', '--data-root', str(ade20k), '--work-dir', str(tmp_path)),
            *('--seed', '3', '--auto-scale-lr', '--cfg-options', 'train_cfg.max_iters=1'),
            *(f'{pipeline}.3.crop_size={size}', f'{pipeline}.2.scale=(128,32)'),
            *(f'model.data_preprocessor.size={size}', 'val_dataloader=None', 'val_cfg=None'),
            *('val_evaluator=None', 'train_dataloader.num_workers=0'),
            *('train_dataloader.persistent_workers=False', 'default_hooks.logger.interval=1'),
            TENSORBOARD,
        ]
    )
    runner = train(args)
    assert type(runner.model.backbone).__name__ == 'RMT'
    assert runner.model.neck.in_channels == [64, 128, 256, 512]
    assert runner.seed == 3
    # A batch of 2 instead of 16.
    assert runner.optim_wrapper.optimizer.param_groups[0]['initial_lr'] == pytest.approx(1e-4 / 8)
    assert 0 < written['loss'][1] < 20


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['seg', 'det'])
def test_two_processes_train_on_cpus(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data = request.getfixturevalue({'seg': 'ade20k', 'det': 'coco'}[kind])
    config = write_config(tmp_path, kind)
    length = 'train_cfg.max_iters=2' if kind == 'seg' else 'train_cfg.max_epochs=1'
    env = {**os.environ, 'PYTHON': sys.executable, 'CUDA_VISIBLE_DEVICES': ''}
    done = subprocess.run(
        [
            *('bash', TOOLS / 'dist_train.sh', config, '2', '--data-root', data),
            *('--work-dir', tmp_path / 'work', '--cfg-options', length),
        ],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    if kind == 'seg':
        # The test-time model and the process group each put a wrapper around the segmentor.
        done = subprocess.run(
            [
                *('bash', TOOLS / 'dist_test.sh', config, tmp_path / 'work' / 'iter_2.pth', '2'),
                *('--tta', '--fuse', '--data-root', data, '--work-dir', tmp_path / 'test', '--out'),
                tmp_path / 'metrics.json',
            ],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        assert 0 <= json.loads((tmp_path / 'metrics.json').read_text())['mIoU'] <= 100
    # 4 pictures make one iteration of 2 processes with 2 each; the segmentor does 2 of them.
    assert sorted(losses(tmp_path / 'work')) == ([1, 2] if kind == 'seg' else [1])
    assert list((tmp_path / 'work').glob('iter_2.pth' if kind == 'seg' else 'epoch_1.pth'))
