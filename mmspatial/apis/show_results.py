"""What `tools/show_results.py` does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS

from mmspatial.compat.checkpoint import TRUST_VARIABLE

from .configs import load_config
from .data import check_data
from .errors import UserError
from .folders import make_folder
from .images import name_outputs, write_picture
from .infer import predict_above
from .inference import best_device, first_dataset, load_model, step_name, to_instances
from .pictures import Instances, Picture, Result, coloured_like, draw, fit, resize
from .sheets import legend, sheet

_TITLES = ('image', 'truth', 'prediction')
_OVERVIEW_ROWS = 4


def show_results(args: argparse.Namespace) -> list[Path]:
    """Draw results on the validation set as a command line says.

    Args:
        args: Options as `picture_options.parse_show_args` returns them.

    Returns:
        The pictures; the last one is the overview.

    Raises:
        UserError: For anything that the user can mend.
        CheckpointError: If the checkpoint cannot be read.
    """
    if args.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = '1'
    cfg = load_config(args)
    check_data(cfg, ('val',))
    predictor = load_model(cfg, args.checkpoint, args.device or best_device())
    make_folder(args.out_dir, '--out-dir')

    samples = list(read_truth(cfg, args.num))
    folder = Path(args.out_dir).expanduser()
    outputs = name_outputs([path for path, _, _ in samples], folder)
    shown = set(_spaced(len(samples), _OVERVIEW_ROWS))
    rows: list[list[Picture]] = []
    results: list[Result] = []
    for i, (path, image, truth) in enumerate(samples):
        found = predict_above(predictor, image, args.score_thr, path)
        if isinstance(truth, Instances) and isinstance(found, Instances):
            found = coloured_like(found, truth)
        size = fit(image, most=480)
        pair = [draw(image, it, predictor.classes, size, args.opacity) for it in (truth, found)]
        row = [resize(image, size), *pair]
        entries = legend([truth, found], predictor.classes)
        write_picture(outputs[i], sheet([row], _TITLES, entries))
        if i in shown:
            rows.append(row)
            results += [truth, found]
    outputs.append(folder / 'overview.png')
    write_picture(outputs[-1], sheet(rows, _TITLES, legend(results, predictor.classes)))
    print(f'{len(samples)} pictures are in {folder}, several of them in {outputs[-1]}')
    return outputs


def read_truth(cfg: Config, count: int) -> Iterator[tuple[Path, Picture, Result]]:
    """Read evenly spaced images of the validation set with their annotations.

    Args:
        cfg: Config with ``val_dataloader``.
        count: How many images at most.

    Yields:
        Path, image and truth, at the image's own size.

    Raises:
        UserError: If the data set is empty or its pipeline loads no annotations.
    """
    settings = first_dataset(cfg.val_dataloader.dataset).copy()
    # Without the steps that resize: the truth belongs to the image as it is in the file.
    names = [step_name(step) for step in settings.pipeline]
    settings.pipeline = [
        step
        for step, name in zip(settings.pipeline, names, strict=True)
        if name.startswith(('Load', 'Pack'))
    ]
    if 'LoadAnnotations' not in names:
        raise UserError('the validation pipeline has no LoadAnnotations: there is no truth to show')
    dataset = DATASETS.build(settings)
    if not len(dataset):
        raise UserError('the validation set has no images')
    for i in _spaced(len(dataset), count):
        data = dataset[i]
        image = np.ascontiguousarray(data['inputs'].numpy()[::-1].transpose(1, 2, 0), np.uint8)
        sample = data['data_samples']
        yield Path(sample.img_path), image, _truth(sample, image.shape[:2])


def _truth(sample: Any, size: tuple[int, int]) -> Result:
    if 'gt_sem_seg' in sample:
        return sample.gt_sem_seg.data[0].numpy()
    things = to_instances(sample.gt_instances, size)
    groups = to_instances(sample.ignored_instances, size)
    crowd = np.repeat([False, True], [len(things.boxes), len(groups.boxes)])
    masks = None if things.masks is None else np.concatenate([things.masks, groups.masks])
    return Instances(
        np.concatenate([things.boxes, groups.boxes]),
        np.concatenate([things.labels, groups.labels]),
        masks=masks,
        crowd=crowd,
    )


def _spaced(length: int, count: int) -> list[int]:
    """Return up to `count` different numbers below `length`, evenly spaced, the first 0."""
    return [i * length // min(count, length) for i in range(min(count, length))]
