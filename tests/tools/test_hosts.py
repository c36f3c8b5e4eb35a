"""The hosts' own tools and inferencers take our configs, each in a fresh interpreter."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmseg.datasets import ADE20KDataset
from PIL import Image
from tiny import losses, run_tool

from mmspatial.compat.checkpoint import load_file
from mmspatial.compat.distributions import installed_set
from mmspatial.datasets import write_ade20k, write_coco

ROOT = Path(__file__).parents[2]
CONFIGS = {
    'mmseg': ROOT / 'configs' / 'upernet_evt_xs_scenes.py',
    'mmdet': ROOT / 'configs' / 'maskrcnn_evt_xs_scenes.py',
}
DATA = {'mmseg': 'data/scenes/ade20k', 'mmdet': 'data/scenes/coco'}
SHORT = {
    'mmseg': ['train_cfg.max_iters=2', 'train_cfg.val_interval=2'],
    'mmdet': ['train_cfg.max_epochs=1'],
}
EASY = [
    'train_dataloader.batch_size=2', 'default_hooks.logger.interval=1',
    *(
        f'{kind}_dataloader.{key}'
        for kind in ('train', 'val')
        for key in ('num_workers=0', 'persistent_workers=False')
    ),
]  # fmt: skip


def host_tool(host: str, name: str) -> Path:
    folder = Path(importlib.util.find_spec(host).origin).parent / '.mim' / 'tools'
    if not folder.is_dir():
        pytest.skip(f'this distribution of {host} ships no tools')
    return folder / name


def run(folder: Path, *words: str | Path) -> None:
    """Run Python in a folder, on the CPU."""
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'CUDA_VISIBLE_DEVICES': ''}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope='module')
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to work in, with the data where the configs look for them."""
    folder = tmp_path_factory.mktemp('hosts')
    write_ade20k(folder / DATA['mmseg'], 4, 2, (96, 128), 0, False)
    write_coco(folder / DATA['mmdet'], 4, 2, (96, 128), 0, False)
    return folder


def train(host: str, place: Path) -> Path:
    tool = host_tool(host, 'train.py')
    options = ['--cfg-options', *SHORT[host], *EASY]
    run(place, tool, CONFIGS[host], '--work-dir', place / host, *options)
    return Path((place / host / 'last_checkpoint').read_text())


@pytest.fixture(scope='module')
def segmentor(place: Path) -> Path:
    """The checkpoint that mmseg's own tool has trained."""
    return train('mmseg', place)


@pytest.fixture(scope='module')
def detector(place: Path) -> Path:
    """The checkpoint that mmdet's own tool has trained."""
    return train('mmdet', place)


@pytest.fixture(scope='module')
def label_maps(segmentor: Path, place: Path) -> Path:
    """What `tools/test.py` predicts for the validation images."""
    torch.set_num_threads(1)
    root, out = place / DATA['mmseg'], place / 'label_maps'
    words = ('--data-root', root, '--work-dir', place / 'test', '--out', out)
    run_tool('test', str(CONFIGS['mmseg']), segmentor, *words)
    return out


@pytest.mark.smoke
@pytest.mark.parametrize(('host', 'name'), [('mmseg', 'segmentor'), ('mmdet', 'detector')])
def test_train_takes_our_config(
    host: str, name: str, place: Path, request: pytest.FixtureRequest
) -> None:
    checkpoint = request.getfixturevalue(name)
    found = losses(place / host)
    assert sorted(found) == [1, 2]
    assert all(0 < loss < 100 for loss in found.values())
    state = load_file(checkpoint)
    assert state['meta']['iter'] == 2
    assert any(key.startswith('backbone.stages.3.') for key in state['state_dict'])


@pytest.mark.smoke
def test_mmseg_inferencer_as_in_the_readme(
    segmentor: Path, label_maps: Path, place: Path, tmp_path: Path
) -> None:
    blocks = re.findall(r'```python\n(.*?)```', (ROOT / 'README.md').read_text(), re.DOTALL)
    code = next(block for block in blocks if 'MMSegInferencer' in block)
    image = sorted((place / DATA['mmseg'] / 'images' / 'validation').iterdir())[0]
    values = {'CHECKPOINT': segmentor, "'image.jpg'": image}
    values["'configs/upernet_evt_b_ade20k.py'"] = CONFIGS['mmseg']
    for written, value in values.items():
        assert written in code
        code = code.replace(written, repr(str(value)))
    run(tmp_path, '-c', code)
    (file,) = (tmp_path / 'out' / 'pred').glob('*.png')
    found = np.array(Image.open(file))
    # The label maps are as ADE20K's: 0 stands for what has no label.
    expected = np.array(Image.open(label_maps / f'{image.stem}.png')) - 1
    assert len(np.unique(expected)) > 1
    assert found.shape == expected.shape
    assert (found == expected).mean() > 0.99
    assert list((tmp_path / 'out' / 'vis').iterdir())


@pytest.mark.smoke
def test_det_inferencer(detector: Path, place: Path, tmp_path: Path) -> None:
    data, out = place / DATA['mmdet'], tmp_path / 'predictions.pkl'
    words = ('--data-root', data, '--work-dir', tmp_path, '--out', out)
    run_tool('test', str(CONFIGS['mmdet']), detector, *words)
    with out.open('rb') as file:
        first = pickle.load(file)[0]
    code = f"""
import mmspatial
from mmdet.apis import DetInferencer
inferencer = DetInferencer({str(CONFIGS['mmdet'])!r}, {str(detector)!r})
inferencer({first['img_path']!r}, out_dir='out', no_save_pred=False)
"""
    run(tmp_path, '-c', code)
    (file,) = (tmp_path / 'out' / 'preds').iterdir()
    found, expected = json.loads(file.read_text()), first['pred_instances']
    assert len(found['scores']) == len(expected['scores']) > 0
    for key in ('scores', 'bboxes'):
        torch.testing.assert_close(
            torch.tensor(found[key]), expected[key].cpu(), rtol=1e-3, atol=1e-3
        )
    assert list((tmp_path / 'out' / 'vis').iterdir())


def test_browse_dataset_draws_our_training_data(place: Path, tmp_path: Path) -> None:
    """mmseg's; mmdet's imports mmdet's models first, which takes a compiled mmcv."""
    if installed_set() == 'openmmlab':
        pytest.skip("upstream's browse_dataset.py imports mmcv.ops before it reads the config")
    tool = host_tool('mmseg', 'analysis_tools/browse_dataset.py')
    run(place, tool, CONFIGS['mmseg'], '--output-dir', tmp_path, '--not-show')
    names = {f'scene_train_{number:06}.jpg' for number in range(4)}
    assert {file.name for file in tmp_path.rglob('*.jpg')} == names


@pytest.fixture
def confusion_matrix() -> ModuleType:
    file = host_tool('mmseg', 'analysis_tools/confusion_matrix.py')
    spec = importlib.util.spec_from_file_location('confusion_matrix', file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def truth(place: Path) -> np.ndarray:
    """Return the labels of the validation images by the config's own classes."""
    classes = Config.fromfile(CONFIGS['mmseg']).classes
    by_id = np.full(256, 255)
    for label, name in enumerate(classes):
        by_id[ADE20KDataset.METAINFO['classes'].index(name) + 1] = label
    files = sorted((place / DATA['mmseg'] / 'annotations' / 'validation').iterdir())
    return by_id[np.stack([np.array(Image.open(file)) for file in files])]


@pytest.mark.smoke
def test_confusion_matrix_reads_our_config_and_predictions(
    confusion_matrix: ModuleType,
    label_maps: Path,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All but the figure, for which mmseg takes 26 GB with ADE20K's 150 classes.

    Nor are the counts compared one by one: mmseg multiplies labels in 8 bits.
    """
    drawn = []
    monkeypatch.chdir(place)
    monkeypatch.setattr(
        confusion_matrix, 'plot_confusion_matrix', lambda matrix, *_, **__: drawn.append(matrix)
    )
    words = (CONFIGS['mmseg'], label_maps, tmp_path)
    monkeypatch.setattr(sys, 'argv', ['confusion_matrix.py', *map(str, words)])
    confusion_matrix.main()
    (matrix,) = drawn
    assert matrix.shape == (150, 150)
    # Upstream takes one from the labels, from which the data set has taken it already.
    ignored = 255 if installed_set() == 'onedl' else 0
    assert matrix.sum() == (truth(place) != ignored).sum()
