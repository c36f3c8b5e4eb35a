from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from mmspatial.apis import UserError
from mmspatial.apis.images import find_images, name_outputs, read_image, write_picture

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


def test_every_kind_of_pixels_becomes_rgb(tmp_path: Path) -> None:
    alpha = np.dstack([RGB, np.full((5, 7), 9, np.uint8)])
    grey = RGB[..., 0]
    cases = {
        'rgb': (Image.fromarray(RGB), RGB),
        'alpha': (Image.fromarray(alpha), RGB),
        'grey': (Image.fromarray(grey), np.dstack([grey] * 3)),
        'bits16': (Image.fromarray(grey.astype(np.uint16) * 257), np.dstack([grey] * 3)),
    }
    for name, (image, expected) in cases.items():
        path = tmp_path / f'{name} ü.png'
        image.save(path)
        np.testing.assert_allclose(read_image(path), expected, atol=1, err_msg=name)
    deep = tmp_path / 'deep.png'
    cv2.imencode('.png', RGB[..., ::-1].astype(np.uint16) * 257)[1].tofile(deep)
    np.testing.assert_allclose(read_image(deep), RGB, atol=1)


def test_photographs_are_turned_as_exif_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RGB).save(tmp_path / 'a.jpg', exif=exif)
    assert read_image(tmp_path / 'a.jpg').shape == (7, 5, 3)


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / 'text.png').write_text('hello')
    (tmp_path / 'empty.png').touch()
    for suffix in ('jpg', 'png'):
        whole = tmp_path / f'whole.{suffix}'
        Image.fromarray(np.tile(RGB, (20, 20, 1))).save(whole)
        (tmp_path / f'cut.{suffix}').write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    for name, words in {
        'text.png': 'no image',
        'empty.png': 'is empty',
        'cut.jpg': 'damaged',
        'cut.png': 'damaged',
        'none.png': 'does not exist',
        '': 'cannot be read',
    }.items():
        with pytest.raises(UserError, match=words) as error:
            read_image(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in ('a/2.jpg', 'a/1.PNG', 'a/notes.txt', 'b/c/3.jpg', 'x[1].jpg'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    words = ['x[1].jpg', 'a', '**/*.jpg', 'missing.jpg']
    found = find_images([str(tmp_path / word) for word in words])
    expected = ['x[1].jpg', 'a/1.PNG', 'a/2.jpg', 'b/c/3.jpg', 'missing.jpg']
    assert [str(p.relative_to(tmp_path)) for p in found] == expected
    for word in ('b', '*.gif'):
        with pytest.raises(UserError, match=r'has no image|no file fits'):
            find_images([str(tmp_path / word)])


def test_pictures_never_share_a_name_or_replace_an_image(tmp_path: Path) -> None:
    paths = [Path('a/x.jpg'), Path('b/X.png'), Path('x_2.jpg'), Path('y.jpg')]
    names = [path.name for path in name_outputs(paths, tmp_path)]
    assert names == ['x.png', 'X_2.png', 'x_2_2.png', 'y.png']
    with pytest.raises(UserError, match='--out-dir'):
        name_outputs([tmp_path / 'x.png'], tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match='cannot be written'):
        write_picture(tmp_path / 'file' / 'x.png', RGB)
    write_picture(tmp_path / 'new' / 'x.png', RGB)
    assert (read_image(tmp_path / 'new' / 'x.png') == RGB).all()
