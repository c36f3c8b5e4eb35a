"""Where the data sets of a config are, and what to say when they are not there."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS

from .errors import UserError

# Annotation files up to this size are read in advance; larger ones surely hold something.
_SMALL = 2**20
_PARTS = ('train', 'val', 'test')
_LAYOUTS = {
    'ADE20KDataset': """\
    {root}
    ├── images
    │   ├── training      *.jpg
    │   └── validation    *.jpg
    └── annotations
        ├── training      *.png (150 classes, 0 is "other")
        └── validation    *.png
It is the content of ADEChallengeData2016.zip (the scene parsing benchmark, not full ADE20K).""",
    'CocoDataset': """\
    {root}
    ├── annotations
    │   ├── instances_train2017.json
    │   └── instances_val2017.json
    ├── train2017         *.jpg
    └── val2017           *.jpg
It is the content of COCO 2017's train2017.zip, val2017.zip and annotations_trainval2017.zip.""",
    'COCOStuffDataset': """\
    {root}
    ├── images
    │   ├── train2017     *.jpg
    │   └── val2017       *.jpg
    └── annotations
        ├── train2017     *_labelTrainIds.png (171 classes, 255 is ignored)
        └── val2017       *_labelTrainIds.png
It is the content of COCO 2017's train2017.zip and val2017.zip, and of
stuffthingmaps_trainval2017.zip after mmseg's tools/dataset_converters/coco_stuff164k.py.""",
    'PascalContextDataset59': """\
    {root}
    ├── JPEGImages                          *.jpg
    ├── SegmentationClassContext            *.png (59 classes, 0 is background)
    └── ImageSets/SegmentationContext
        ├── train.txt
        └── val.txt
It is the content of VOCtrainval_03-May-2010.tar after mmseg's
tools/dataset_converters/pascal_context.py, which also needs Pascal Context's annotations.""",
}
_SCENES = {
    'ADE20KDataset': 'ade20k',
    'CocoDataset': 'coco',
    'COCOStuffDataset': 'cocostuff',
    'PascalContextDataset59': 'pascal59',
}


def set_data_root(cfg: Config, root: str) -> None:
    """Point every data set and every evaluator of a config to another folder.

    Args:
        cfg: Config to change in place; wrapped data sets are found too.
        root: The new folder. Annotation files of evaluators move along when they were in the
            old one.
    """
    for part in _PARTS:
        loader = cfg.get(f'{part}_dataloader')
        old = None
        for dataset in _datasets(loader.dataset) if loader else ():
            old = dataset.get('data_root', old)
            dataset['data_root'] = root
        evaluators = cfg.get(f'{part}_evaluator') or []
        for evaluator in evaluators if isinstance(evaluators, list) else [evaluators]:
            for metric in evaluator.get('metrics', [evaluator]):
                if 'ann_file' in metric and old is not None:
                    metric['ann_file'] = _moved(metric['ann_file'], old, root)
    if 'data_root' in cfg:
        cfg.data_root = root


def check_data(cfg: Config, parts: tuple[str, ...]) -> None:
    """Check that the folders and files which the data sets name exist and hold images.

    Folders are listed; large annotation files are looked into only at their beginning.

    Args:
        cfg: Config whose data loaders are looked at.
        parts: Which of them: ``train``, ``val``, ``test``.

    Raises:
        UserError: If something is missing; the message shows the layout that is expected.
    """
    for part in parts:
        loader = cfg.get(f'{part}_dataloader')
        for dataset in _datasets(loader.dataset) if loader else ():
            fault = _find_fault(dataset, part, cfg.get('default_scope'))
            if fault:
                raise UserError(_complaint(dataset, part, fault))


def scenes_layout(kind: str) -> str:
    """Return the layout of drawn scenes that a data set's class reads, ADE20K's for others.

    Args:
        kind: Name of the class, with or without a scope.
    """
    return _SCENES.get(kind.rpartition('.')[2], 'ade20k')


def _datasets(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield a data set, or those inside a wrapper."""
    if not isinstance(dataset, dict):
        return
    inner = dataset.get('datasets', [dataset['dataset']] if 'dataset' in dataset else None)
    if inner is None:
        yield dataset
        return
    for child in inner:
        yield from _datasets(child)


def _places(dataset: dict[str, Any]) -> Iterator[Path]:
    prefixes = dataset.get('data_prefix') or {}
    for place in (dataset.get('ann_file'), *prefixes.values()):
        if place and (path := _place(dataset, place)):
            yield path


def _place(dataset: dict[str, Any], place: Any) -> Path | None:
    """Return where something of a data set is, None if that is no place on the disk."""
    root = dataset.get('data_root') or ''
    if not isinstance(place, str) or '://' in f'{root}{place}':
        return None
    return Path(os.path.expanduser(root), place)


def _is_there(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _moved(path: str, old: str, new: str) -> str:
    inside = os.path.relpath(path, old)
    return path if inside.startswith(os.pardir) else os.path.join(new, inside)


def _find_fault(dataset: dict[str, Any], part: str, scope: str | None) -> str | None:
    """Return what is wrong with the files of a data set, None if nothing is."""
    for path in _places(dataset):
        if not _is_there(path):
            return f'{path} {"is empty" if path.is_dir() else "does not exist"}'
    if 'Coco' in str(dataset.get('type')):
        return _fault_of_coco(dataset, part)
    prefixes = dataset.get('data_prefix') or {}
    images, truth = _place(dataset, prefixes.get('img_path')), None
    if "'LoadAnnotations'" in str(dataset.get('pipeline')):
        truth = _place(dataset, prefixes.get('seg_map_path'))
    suffixes = _suffixes(dataset, scope)
    # With a list of images, other files may be in the folders.
    if images is None or suffixes is None or dataset.get('ann_file'):
        return None
    return _fault_of_folders(images, truth, *suffixes)


def _fault_of_folders(images: Path, truth: Path | None, image: str, label: str) -> str | None:
    files = _list(images)
    stems = [name.removesuffix(image) for name in files if name.endswith(image)]
    if not stems:
        return f'{images} holds no *{image} ({len(files)} other files, such as {min(files)})'
    if truth is None:
        return None
    labels = set(_list(truth))
    alone = sorted(stem for stem in stems if stem + label not in labels)
    if not alone:
        return None
    return (
        f'{len(alone)} of {len(stems)} images in {images} have no annotation: '
        f'{truth / (alone[0] + label)} does not exist'
    )


def _fault_of_coco(dataset: dict[str, Any], part: str) -> str | None:
    file = _place(dataset, dataset.get('ann_file'))
    if file is None:
        return None
    with file.open(encoding='utf-8', errors='replace') as stream:
        text = stream.read(_SMALL)
        is_whole = not stream.read(1)
    if is_whole:
        try:
            content = json.loads(text)
        except ValueError as error:
            return f'{file} is no JSON ({error})'
        for key in ('images', 'annotations') if part != 'test' else ('images',):
            if not isinstance(content, dict) or not content.get(key):
                return f"{file} has no '{key}'"
    name = re.search(r'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")', text)
    folder = _place(dataset, (dataset.get('data_prefix') or {}).get('img', ''))
    if name and folder and not (folder / json.loads(name[1])).is_file():
        return f'{folder / json.loads(name[1])}, which {file.name} names, does not exist'
    return None


def _suffixes(dataset: dict[str, Any], scope: str | None) -> tuple[str, str] | None:
    """Return the suffixes of images and label maps, None if the data set's class has none."""
    with DATASETS.switch_scope_and_registry(dataset.get('_scope_') or scope) as registry:
        kind = registry.get(str(dataset.get('type')))
    if kind is None:
        return None
    parameters = inspect.signature(kind).parameters
    found = []
    for name in ('img_suffix', 'seg_map_suffix'):
        value = dataset.get(name) or getattr(parameters.get(name), 'default', None)
        if not isinstance(value, str):
            return None
        found.append(value)
    return found[0], found[1]


def _list(folder: Path) -> list[str]:
    """Return the files in a folder and below, relative to it."""
    return [
        os.path.relpath(os.path.join(where, name), folder) if where != str(folder) else name
        for where, _, names in os.walk(folder, followlinks=True)
        for name in names
    ]


def _complaint(dataset: dict[str, Any], part: str, fault: str) -> str:
    root = dataset.get('data_root') or '.'
    kind = str(dataset.get('type')).rpartition('.')[2]
    layout = _LAYOUTS.get(kind)
    lines = [f"the data set for '{part}' is not there: {fault}"]
    if layout:
        lines += ['Expected:', layout.format(root=root)]
    layout = scenes_layout(kind)
    scenes = f' --layout {layout}' if layout != 'ade20k' else ''
    lines += [
        'Give the folder with --data-root DIR. To try things out without a download,',
        f'`python tools/make_scenes.py DIR{scenes}` writes a small substitute.',
    ]
    return '\n'.join(lines)
