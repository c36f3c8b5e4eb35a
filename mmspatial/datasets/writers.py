"""Write street scenes to disk as ADE20K, COCO, COCO-Stuff and Pascal Context are laid out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from mmspatial.datasets.folder import claim, finish, is_complete
from mmspatial.datasets.scenes import COCO_CATEGORIES, SCENE_CLASSES, Instance, Scene, draw_scene
from mmspatial.datasets.scenes.classes import COCOSTUFF_LABELS, PASCAL59_LABELS

_GENERATOR = 1  # raise when the same seed gives other scenes: older sets are then written anew
_SPLITS = ('train', 'val')
_ADE_FOLDERS = {'train': 'training', 'val': 'validation'}
_FIRST_COCO_ID = {'train': 1, 'val': 1_000_001}  # image ids differ between the splits


@dataclass(frozen=True)
class _SceneSet:
    """The parameters of one set; scene i of a split depends on seed, split and i alone."""

    layout: str
    num_train: int
    num_val: int
    size: tuple[int, int]
    seed: int
    vary_size: bool
    generator: int = _GENERATOR

    def __post_init__(self) -> None:
        if min(self.num_train, self.num_val) < 1:
            raise ValueError(
                f'num_train={self.num_train}, num_val={self.num_val}: need at least 1 each'
            )
        if self.seed < 0:
            raise ValueError(f'seed={self.seed}: must not be negative')
        if min(self.size) < 48 or max(self.size) > 4096:
            raise ValueError(f'size={self.size[0]} x {self.size[1]}: sides must be 48 to 4096')

    def stamp(self) -> dict[str, object]:
        return {**asdict(self), 'size': list(self.size)}

    def names(self, split: str) -> list[str]:
        count = self.num_train if split == 'train' else self.num_val
        return [f'scene_{split}_{index:06d}' for index in range(count)]

    def scenes(self, split: str) -> Iterator[tuple[str, Scene]]:
        for index, name in enumerate(self.names(split)):
            rng = np.random.default_rng((self.seed, _SPLITS.index(split), index))
            size = _varied(rng, self.size) if self.vary_size else self.size
            yield name, draw_scene(rng, size)


def write_ade20k(
    root: str | os.PathLike[str],
    num_train: int,
    num_val: int,
    size: tuple[int, int] = (192, 256),
    seed: int = 0,
    vary_size: bool = True,
) -> bool:
    """Write scenes as ADEChallengeData2016 is laid out.

    That is ``{images,annotations}/{training,validation}``, with the ids 1 to 150 in the
    annotations and 0 for what has no label. A complete set with the same parameters is kept.

    Args:
        root: New or empty folder, or one written by this package.
        num_train: Number of training scenes.
        num_val: Number of validation scenes.
        size: Height and width in pixels, 48 to 4096.
        seed: Equal seeds give equal sets; scene i is the same however many there are.
        vary_size: Let sizes and aspect ratios vary around ``size``, some pictures upright.

    Returns:
        Whether anything was written; False if the set was there already.

    Raises:
        ValueError: A parameter is out of range.
        FileExistsError: ``root`` holds files that this package did not write.
        NotADirectoryError: ``root`` is a file.
    """
    chosen = _SceneSet('ade20k', num_train, num_val, size, seed, vary_size)

    def place(split: str, name: str) -> tuple[str, str]:
        folder = _ADE_FOLDERS[split]
        return f'images/{folder}/{name}.jpg', f'annotations/{folder}/{name}.png'

    return _write_maps(Path(root), chosen, place)


def write_cocostuff(
    root: str | os.PathLike[str],
    num_train: int,
    num_val: int,
    size: tuple[int, int] = (192, 256),
    seed: int = 0,
    vary_size: bool = True,
) -> bool:
    """Write scenes as COCO-Stuff 164k is laid out for mmseg.

    That is ``{images,annotations}/{train2017,val2017}`` with the ids 0 to 170 in
    ``*_labelTrainIds.png``, and 255 for what has no label. Arguments, result and errors are
    those of ``write_ade20k``.
    """
    chosen = _SceneSet('cocostuff', num_train, num_val, size, seed, vary_size)

    def place(split: str, name: str) -> tuple[str, str]:
        folder = f'{split}2017'
        return f'images/{folder}/{name}.jpg', f'annotations/{folder}/{name}_labelTrainIds.png'

    return _write_maps(Path(root), chosen, place, _renumber(COCOSTUFF_LABELS, 255))


def write_pascal59(
    root: str | os.PathLike[str],
    num_train: int,
    num_val: int,
    size: tuple[int, int] = (192, 256),
    seed: int = 0,
    vary_size: bool = True,
) -> bool:
    """Write scenes as Pascal Context is laid out in ``VOCdevkit/VOC2010`` for mmseg.

    That is ``JPEGImages``, ``SegmentationClassContext`` with the ids 1 to 59 and 0 for what has no
    label, and lists in ``ImageSets/SegmentationContext``. Arguments, result and errors are those
    of ``write_ade20k``.
    """
    chosen = _SceneSet('pascal59', num_train, num_val, size, seed, vary_size)

    def place(split: str, name: str) -> tuple[str, str]:
        return f'JPEGImages/{name}.jpg', f'SegmentationClassContext/{name}.png'

    return _write_maps(
        Path(root), chosen, place, _renumber(PASCAL59_LABELS, 0),
        lists='ImageSets/SegmentationContext/{}.txt',
    )  # fmt: skip


def _write_maps(
    root: Path,
    chosen: _SceneSet,
    place: Callable[[str, str], tuple[str, str]],
    numbers: NDArray | None = None,
    lists: str | None = None,
) -> bool:
    """Write pictures and label maps.

    Args:
        root: As in `write_ade20k`.
        chosen: What to write.
        place: Gives a scene's picture and label map, by split and name.
        numbers: The data set's number for each of ADE20K's; None to keep those.
        lists: Where a split's names are listed, with ``{}`` for the split; None for no lists.

    Returns:
        As `write_ade20k`.
    """
    files = [
        file for split in _SPLITS for name in chosen.names(split) for file in place(split, name)
    ]
    names = {lists.format(split): chosen.names(split) for split in _SPLITS} if lists else {}
    if is_complete(root, chosen.stamp(), [*files, *names]):
        return False
    claim(root, chosen.stamp())
    for split in _SPLITS:
        for name, scene in chosen.scenes(split):
            image, truth = (root / file for file in place(split, name))
            for file in (image, truth):
                _folder(file.parent)
            _write_jpeg(image, scene.image)
            _write_image(truth, scene.semantic if numbers is None else numbers[scene.semantic])
    for file, each in names.items():
        (_folder((root / file).parent) / Path(file).name).write_text('\n'.join(each) + '\n')
    finish(root, chosen.stamp())
    return True


def _renumber(labels: dict[str, tuple[str, int]], unlabelled: int) -> NDArray:
    """Return a table from ADE20K's numbers to those of ``labels``."""
    table = np.full(256, unlabelled, np.uint8)
    for name, (_, number) in labels.items():
        table[SCENE_CLASSES[name]] = number
    return table


def write_coco(
    root: str | os.PathLike[str],
    num_train: int,
    num_val: int,
    size: tuple[int, int] = (192, 256),
    seed: int = 0,
    vary_size: bool = True,
) -> bool:
    """Write scenes as COCO 2017 is laid out.

    That is ``{train2017,val2017}`` and ``annotations/instances_{train2017,val2017}.json`` with
    all 80 categories, polygons for single things and run lengths for crowds. Arguments, result
    and errors are those of ``write_ade20k``.
    """
    chosen = _SceneSet('coco', num_train, num_val, size, seed, vary_size)
    root = Path(root)
    files = [f'{split}2017/{name}.jpg' for split in _SPLITS for name in chosen.names(split)]
    files += [f'annotations/instances_{split}2017.json' for split in _SPLITS]
    if is_complete(root, chosen.stamp(), files):
        return False
    claim(root, chosen.stamp())
    categories = [{'id': number, 'name': name} for name, number in COCO_CATEGORIES.items()]
    for split in _SPLITS:
        folder = _folder(root / f'{split}2017')
        images: list[dict[str, object]] = []
        annotations: list[dict[str, object]] = []
        for image_id, (name, scene) in enumerate(chosen.scenes(split), _FIRST_COCO_ID[split]):
            _write_jpeg(folder / f'{name}.jpg', scene.image)
            height, width = scene.semantic.shape
            images.append(
                {'id': image_id, 'file_name': f'{name}.jpg', 'height': height, 'width': width}
            )
            for instance in scene.instances:
                number = len(annotations) + 1
                annotations.append({'id': number, 'image_id': image_id, **annotate(instance)})
        path = _folder(root / 'annotations') / f'instances_{split}2017.json'
        path.write_text(
            json.dumps(
                {
                    'info': {'description': 'Street scenes drawn by mmspatial', **chosen.stamp()},
                    'licenses': [],
                    'images': images,
                    'annotations': annotations,
                    'categories': categories,
                }
            )
        )
    finish(root, chosen.stamp())
    return True


def annotate(instance: Instance) -> dict[str, object]:
    """Return COCO's category_id, bbox, area, iscrowd and segmentation of an instance.

    The box (x, y, width, height) encloses the visible pixels and the area counts them. A crowd
    has uncompressed run lengths, everything else polygons; a hole within a thing is filled.
    """
    rows, columns = np.nonzero(instance.mask)
    left, top = int(columns.min()), int(rows.min())
    box = [left, top, int(columns.max()) + 1 - left, int(rows.max()) + 1 - top]
    return {
        'category_id': instance.category_id,
        'bbox': box,
        'area': len(rows),
        'iscrowd': int(instance.crowd),
        'segmentation': _run_lengths(instance.mask) if instance.crowd else _polygons(instance.mask),
    }


def _polygons(mask: NDArray) -> list[list[float]]:
    """Outline each connected part of a mask (H, W), a quarter pixel inside its border."""
    # Contours run through pixel centres; on a mask of twice the size these lie close to the
    # border, so that the polygons cover the centres of all pixels of the mask and of no other.
    double = mask.astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1)
    contours, _ = cv2.findContours(double, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    return [((contour.reshape(-1) + 0.5) / 2).tolist() for contour in contours]


def _run_lengths(mask: NDArray) -> dict[str, object]:
    """Count alternating runs of 0 and 1 down the columns of a mask (H, W), zeros first."""
    flat = mask.ravel(order='F')
    changes = np.flatnonzero(np.diff(flat, prepend=False)).tolist()
    edges = [0, *changes, flat.size]
    return {
        'size': list(mask.shape),
        'counts': [end - start for start, end in pairwise(edges)],
    }


def _varied(rng: np.random.Generator, size: tuple[int, int]) -> tuple[int, int]:
    """Vary scale and aspect ratio; every seventh picture stands upright."""
    scale, aspect = rng.uniform(0.85, 1.15), np.exp(rng.uniform(-0.12, 0.12))
    height, width = round(size[0] * scale * aspect), round(size[1] * scale / aspect)
    return (width, height) if rng.random() < 1 / 7 else (height, width)


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _write_jpeg(path: Path, image: NDArray) -> None:
    _write_image(path, image[..., ::-1], cv2.IMWRITE_JPEG_QUALITY, 95)


def _write_image(path: Path, image: NDArray, *options: int) -> None:
    if not cv2.imwrite(str(path), image, options):
        raise OSError(f'cannot write {path}')


WRITERS = {
    'ade20k': write_ade20k,
    'coco': write_coco,
    'cocostuff': write_cocostuff,
    'pascal59': write_pascal59,
}
"""The writers by the names of their layouts."""
