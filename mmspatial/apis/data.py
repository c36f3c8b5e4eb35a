"""Where the data sets of a config are, and what to say when they are not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config

from .errors import UserError

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
    """Check that the folders and files which the data sets name exist.

    Args:
        cfg: Config whose data loaders are looked at.
        parts: Which of them: ``train``, ``val``, ``test``.

    Raises:
        UserError: If something is missing; the message shows the layout that is expected.
    """
    for part in parts:
        loader = cfg.get(f'{part}_dataloader')
        for dataset in _datasets(loader.dataset) if loader else ():
            missing = [path for path in _places(dataset) if not _is_there(path)]
            if missing:
                raise UserError(_complaint(dataset, part, missing[0]))


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
    root = dataset.get('data_root') or ''
    prefixes = dataset.get('data_prefix') or {}
    for place in (dataset.get('ann_file'), *prefixes.values()):
        if isinstance(place, str) and place and '://' not in f'{root}{place}':
            yield Path(os.path.expanduser(root), place)


def _is_there(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _moved(path: str, old: str, new: str) -> str:
    inside = os.path.relpath(path, old)
    return path if inside.startswith(os.pardir) else os.path.join(new, inside)


def _complaint(dataset: dict[str, Any], part: str, missing: Path) -> str:
    root = dataset.get('data_root') or '.'
    state = 'is empty' if missing.is_dir() else 'does not exist'
    layout = _LAYOUTS.get(str(dataset.get('type')).rpartition('.')[2])
    lines = [f"the data set for '{part}' is not there: {missing} {state}"]
    if layout:
        lines += ['Expected:', layout.format(root=root)]
    of_coco = ' --layout coco' if 'Coco' in str(dataset.get('type')) else ''
    lines += [
        'Give the folder with --data-root DIR. To try things out without a download,',
        f'`python tools/make_scenes.py DIR{of_coco}` writes a small substitute.',
    ]
    return '\n'.join(lines)
