"""What is written is what ADE20K's and COCO's own readers expect, and what was drawn."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmspatial.datasets import SCENE_CATEGORIES, SCENE_CLASSES, draw_scene, write_ade20k, write_coco
from mmspatial.datasets.folder import STAMP
from mmspatial.datasets.scenes import COCO_CATEGORIES
from mmspatial.datasets.writers import annotate

SIZE = (96, 128)


@pytest.fixture(scope='module')
def ade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('ade')
    assert write_ade20k(root, 3, 8, SIZE, seed=1)
    return root


@pytest.fixture(scope='module')
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('coco')
    assert write_coco(root, 3, 30, SIZE, seed=1)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob('*'))
        if path.is_file()
    }


def test_ade20k_layout(ade: Path) -> None:
    for split, count in (('training', 3), ('validation', 8)):
        images = sorted(path.stem for path in (ade / 'images' / split).iterdir())
        assert images == sorted(path.stem for path in (ade / 'annotations' / split).iterdir())
        assert len(images) == count
    shapes = set()
    for path in (ade / 'images' / 'validation').iterdir():
        image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        truth = cv2.imread(
            str(ade / 'annotations' / 'validation' / f'{path.stem}.png'), cv2.IMREAD_UNCHANGED
        )
        assert image.shape == (*truth.shape, 3)
        assert truth.dtype == np.uint8
        assert set(np.unique(truth).tolist()) <= {0, *SCENE_CLASSES.values()}
        shapes.add(truth.shape)
    assert len(shapes) > 4, 'sizes should vary'


def test_what_is_written_is_what_was_drawn(tmp_path: Path) -> None:
    write_ade20k(tmp_path, 1, 2, SIZE, seed=5, vary_size=False)
    scene = draw_scene(np.random.default_rng((5, 1, 1)), SIZE)
    name = 'validation/scene_val_000001'
    truth = cv2.imread(str(tmp_path / f'annotations/{name}.png'), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(truth, scene.semantic)
    image = cv2.imread(str(tmp_path / f'images/{name}.jpg'))[..., ::-1].astype(float)
    assert np.abs(image - scene.image).mean() < 6, 'JPEG should change little, channels not swap'


def test_a_seed_fixes_every_byte(ade: Path, tmp_path: Path) -> None:
    write_ade20k(tmp_path / 'again', 3, 8, SIZE, seed=1)
    assert contents(tmp_path / 'again') == contents(ade)
    write_ade20k(tmp_path / 'other', 1, 1, SIZE, seed=2)
    name = 'images/training/scene_train_000000.jpg'
    assert (tmp_path / 'other' / name).read_bytes() != (ade / name).read_bytes()


def test_scene_i_does_not_depend_on_how_many_there_are(ade: Path, tmp_path: Path) -> None:
    write_ade20k(tmp_path, 1, 2, SIZE, seed=1)
    few, many = contents(tmp_path), contents(ade)
    del few[STAMP]
    assert few.items() <= many.items()


def test_training_and_validation_differ(ade: Path) -> None:
    pictures = [path.read_bytes() for path in (ade / 'images').rglob('*.jpg')]
    assert len(set(pictures)) == len(pictures) == 11


def test_coco_file(coco: Path) -> None:
    data = json.loads((coco / 'annotations/instances_val2017.json').read_text())
    assert [(c['name'], c['id']) for c in data['categories']] == list(COCO_CATEGORIES.items())
    assert len(COCO_CATEGORIES) == 80
    assert (COCO_CATEGORIES['stop sign'], COCO_CATEGORIES['toothbrush']) == (13, 90)
    for image in data['images']:
        shape = cv2.imread(str(coco / 'val2017' / image['file_name'])).shape
        assert shape == (image['height'], image['width'], 3)
    numbers = [a['id'] for a in data['annotations']]
    assert len(set(numbers)) == len(numbers)
    assert {a['category_id'] for a in data['annotations']} <= set(SCENE_CATEGORIES.values())
    train = json.loads((coco / 'annotations/instances_train2017.json').read_text())
    assert not {i['id'] for i in train['images']} & {i['id'] for i in data['images']}


def test_annotations_decode_to_the_visible_pixels() -> None:
    coding = pytest.importorskip('pycocotools.mask')
    overlaps, crowds = [], 0
    for seed in range(40):
        for instance in draw_scene(np.random.default_rng((9, seed)), SIZE).instances:
            annotation, mask = annotate(instance), instance.mask
            columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
            assert annotation['bbox'] == [
                columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1
            ]  # fmt: skip
            assert annotation['area'] == mask.sum()
            code = coding.frPyObjects(annotation['segmentation'], *mask.shape)
            if instance.crowd:
                assert annotation['iscrowd'] == 1
                np.testing.assert_array_equal(coding.decode(code), mask)
                crowds += 1
            else:
                assert annotation['iscrowd'] == 0
                decoded = coding.decode(coding.merge(code)).astype(bool)
                overlaps.append((decoded & mask).sum() / (decoded | mask).sum())
    assert crowds > 0
    # Polygons cannot have holes, such as the gap between an arm and the body; all else is exact.
    assert np.median(overlaps) == 1
    assert np.mean(np.array(overlaps) > 0.95) > 0.95


def test_a_finished_set_is_kept(tmp_path: Path) -> None:
    assert write_coco(tmp_path, 1, 1, SIZE)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')}
    assert not write_coco(tmp_path, 1, 1, SIZE)
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')}


@pytest.mark.parametrize('damage', ['picture lost', 'cut short', 'stamp broken'])
def test_an_unfinished_set_is_written_anew(tmp_path: Path, damage: str) -> None:
    write_ade20k(tmp_path, 2, 1, SIZE)
    whole, stamp = contents(tmp_path), tmp_path / STAMP
    if damage == 'picture lost':
        next(tmp_path.rglob('*_000001.jpg')).unlink()
    elif damage == 'cut short':
        stamp.write_text(stamp.read_text().replace('true', 'false'))
    else:
        stamp.write_text('{')
    assert write_ade20k(tmp_path, 2, 1, SIZE)
    assert contents(tmp_path) == whole


def test_another_set_of_ours_is_replaced(tmp_path: Path) -> None:
    write_ade20k(tmp_path / 'a', 3, 1, SIZE)
    assert write_coco(tmp_path / 'a', 1, 1, SIZE)
    write_coco(tmp_path / 'b', 1, 1, SIZE)
    assert contents(tmp_path / 'a') == contents(tmp_path / 'b')


def test_other_peoples_files_are_never_touched(tmp_path: Path) -> None:
    real = tmp_path / 'annotations' / 'instances_val2017.json'
    real.parent.mkdir()
    real.write_text('mine')
    with pytest.raises(FileExistsError, match='not empty and holds no generated scenes'):
        write_coco(tmp_path, 1, 1, SIZE)
    assert contents(tmp_path) == {'annotations/instances_val2017.json': b'mine'}

    ours = tmp_path / 'ours'
    write_ade20k(ours, 1, 1, SIZE)
    (ours / 'images' / 'notes.txt').write_text('mine')
    before = contents(ours)
    with pytest.raises(FileExistsError, match=r'not generated scenes \(images.notes.txt\)'):
        write_ade20k(ours, 1, 1, SIZE, seed=3)
    assert contents(ours) == before

    with pytest.raises(NotADirectoryError, match='is a file'):
        write_ade20k(real, 1, 1, SIZE)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'num_train': 0}, 'at least 1'),
        ({'num_val': -1}, 'at least 1'),
        ({'size': (20, 64)}, '48 to 4096'),
        ({'seed': -1}, 'negative'),
    ],
)
def test_bad_parameters_are_named_before_anything_is_written(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    arguments = {'num_train': 1, 'num_val': 1, 'size': SIZE, **change}
    with pytest.raises(ValueError, match=message):
        write_ade20k(tmp_path / 'new', **arguments)
    assert not (tmp_path / 'new').exists()
