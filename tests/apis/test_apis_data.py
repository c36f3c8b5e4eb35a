from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmspatial.apis import UserError
from mmspatial.apis.configs import read_config
from mmspatial.apis.data import check_data, set_data_root
from mmspatial.apis.folders import make_folder, make_place


def test_data_root_reaches_wrapped_sets_and_evaluators() -> None:
    cfg = read_config('maskrcnn_evt_t_coco_1x')
    inner = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = dict(type='RepeatDataset', times=2, dataset=inner)
    set_data_root(cfg, '/new')
    assert cfg.train_dataloader.dataset.dataset.data_root == '/new'
    assert cfg.val_dataloader.dataset.data_root == '/new'
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        assert evaluator.ann_file == '/new/annotations/instances_val2017.json'


@pytest.mark.parametrize(
    ('name', 'archive', 'first'),
    [
        ('upernet_evt_s_ade20k', r'ADEChallengeData2016\.zip', 'images/training'),
        ('maskrcnn_evt_t_coco_1x', r'train2017\.zip', 'instances_train2017.json'),
        ('probe_vit_t_cocostuff', r'stuffthingmaps_trainval2017\.zip', 'images/train2017'),
        ('probe_vit_t_pascal59', r'VOCtrainval_03-May-2010\.tar', 'SegmentationContext/train.txt'),
    ],
)
def test_missing_data_shows_the_layout(tmp_path: Path, name: str, archive: str, first: str) -> None:
    cfg = read_config(name)
    set_data_root(cfg, str(tmp_path))
    with pytest.raises(UserError, match=rf'{re.escape(str(tmp_path))}(?s:.*){archive}') as caught:
        check_data(cfg, ('train', 'val'))
    assert first in str(caught.value).splitlines()[0]
    suggestion = str(caught.value).splitlines()[-1]
    layout = name.split('_')[3]
    assert (f'make_scenes.py DIR --layout {layout}`' in suggestion) == (layout != 'ade20k')


def test_missing_validation_part_is_found(tmp_path: Path) -> None:
    for part in ('images/training/a.jpg', 'annotations/training/a.png', 'images/validation/a.jpg'):
        (tmp_path / part).parent.mkdir(parents=True)
        (tmp_path / part).touch()
    (tmp_path / 'annotations/validation').mkdir()
    cfg = read_config('upernet_evt_s_ade20k')
    set_data_root(cfg, str(tmp_path))
    check_data(cfg, ('train',))
    with pytest.raises(UserError, match=r"'val'.*annotations/validation is empty"):
        check_data(cfg, ('val',))


def write_files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_images_of_another_format_are_not_taken_for_a_data_set(tmp_path: Path) -> None:
    cfg = read_config('upernet_evt_s_ade20k')
    set_data_root(cfg, str(tmp_path))
    write_files(
        tmp_path, 'images/training/b.png', 'images/training/a.png', 'annotations/training/a.png'
    )
    with pytest.raises(
        UserError, match=r'images/training holds no \*\.jpg \(2 .*a\.png\)'
    ) as caught:
        check_data(cfg, ('train',))
    assert 'ADEChallengeData2016.zip' in str(caught.value)
    cfg.train_dataloader.dataset.img_suffix = '.png'
    with pytest.raises(UserError, match=r'1 of 2 images .*training/b\.png does not exist'):
        check_data(cfg, ('train',))
    write_files(tmp_path, 'annotations/training/b.png')
    check_data(cfg, ('train',))


def test_images_need_annotations_where_the_pipeline_loads_them(tmp_path: Path) -> None:
    cfg = read_config('upernet_evt_s_ade20k')
    set_data_root(cfg, str(tmp_path))
    # Folders below are searched, as mmseg does.
    names = ['x/1', 'x/2', 'x/3']
    write_files(tmp_path, *(f'images/validation/{name}.jpg' for name in names))
    write_files(tmp_path, 'annotations/validation/x/1.png', 'annotations/validation/2.png')
    with pytest.raises(UserError, match=r'2 of 3 images .*validation/x/2\.png does not exist'):
        check_data(cfg, ('val',))
    dataset = cfg.val_dataloader.dataset
    dataset.pipeline = [step for step in dataset.pipeline if step.type != 'LoadAnnotations']
    check_data(cfg, ('val',))


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ('{"images": [', 'is no JSON'),
        ('[]', "has no 'images'"),
        ('{"images": [], "annotations": []}', "has no 'images'"),
        ('{"images": [{"file_name": "a.jpg"}]}', "has no 'annotations'"),
        ('{"images": [{"file_name": "b\\u00e9.jpg"}], "annotations": [{}]}', 'train2017/bé.jpg'),
        # Too large to be read whole.
        ('{"images": [{"file_name": "b.jpg"}], "x": "' + 'x' * 2**20, 'train2017/b.jpg'),
    ],
)
def test_coco_files_without_images_are_refused(tmp_path: Path, content: str, message: str) -> None:
    cfg = read_config('maskrcnn_evt_t_coco_1x')
    set_data_root(cfg, str(tmp_path))
    write_files(tmp_path, 'train2017/a.jpg', 'annotations/instances_train2017.json')
    file = tmp_path / 'annotations/instances_train2017.json'
    file.write_text(content)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        check_data(cfg, ('train',))
    assert 'train2017.zip' in str(caught.value)
    file.write_text('{"images": [{"file_name": "a.jpg"}], "annotations": [{}]}')
    check_data(cfg, ('train',))


def test_folders_for_results_are_checked_at_the_start(tmp_path: Path) -> None:
    make_folder(tmp_path / 'a' / 'b', '--work-dir')
    make_place(tmp_path / 'c' / 'metrics.json', '--out')
    assert (tmp_path / 'a' / 'b').is_dir()
    assert list((tmp_path / 'c').iterdir()) == []
    (tmp_path / 'file').touch()
    for path in (tmp_path / 'file', tmp_path / 'file' / 'x', Path('/proc/nowhere')):
        with pytest.raises(UserError, match=re.escape(f"--work-dir: '{path}'")):
            make_folder(path, '--work-dir')
    for path in (tmp_path / 'file' / 'metrics.json', tmp_path / 'a'):
        with pytest.raises(UserError, match='--out: '):
            make_place(path, '--out')
