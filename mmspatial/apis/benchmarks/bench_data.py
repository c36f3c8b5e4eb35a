"""What `tools/bench_data.py` does: the speed of pipelines and loaders, without a model."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner
from mmengine.utils.dl_utils import set_multi_processing

from mmspatial.datasets import WRITERS

from ..configs import load_config
from ..data import check_data, scenes_layout, set_data_root
from ..errors import UserError
from ..inference import first_dataset
from .records import Row, circumstances, print_rows, write_csv

COLUMNS = (
    'config', 'part', 'workers', 'cpu_ms_per_image', 'images_s', 'main_cpu_ms', 'step_ms',
    'data_ms', 'data_share', 'data', 'cores', 'device', 'torch', 'mmspatial', 'date',
)  # fmt: skip
_TRANSFORMS = ('part', 'cpu_ms_per_image', 'images_s')
_LOADERS = ('workers', 'images_s', 'main_cpu_ms', 'step_ms', 'data_ms', 'data_share')
# Height and width of the scenes, near the median of the data set that they stand for.
_SIZES = {
    'ade20k': (512, 683),
    'coco': (480, 640),
    'cocostuff': (480, 640),
    'pascal59': (375, 500),
}


def bench_data(args: argparse.Namespace) -> None:
    """Run the benchmark as a command line says.

    Args:
        args: As `options.parse_data_args` returns them.

    Raises:
        UserError: If there is no such config or data set.
    """
    torch.set_num_threads(args.threads)
    where = circumstances(torch.device('cpu'), args.threads)
    where = {name: where[name] for name in COLUMNS if name in where}
    where['cores'] = len(os.sched_getaffinity(0))
    if args.data_root and len(args.configs) > 1:
        raise UserError('--data-root is of one config: measure several one after the other')
    rows: list[Row] = []
    for name in args.configs:
        cfg = load_config(argparse.Namespace(**{**vars(args), 'config': name}))
        with _data(cfg, args) as data:
            common = {'config': name, 'data': data}
            found = _measure_transforms(cfg, args.images)
            print(f'\n{name}, {data}, in one process')
            print_rows(found, _TRANSFORMS)
            loaders = [_measure_loader(cfg, workers, args) for workers in args.workers]
            print(f'\n{name}, {data}, through its loader')
            print_rows(loaders, _LOADERS)
            rows += [{**common, **row, **where} for row in (*found, *loaders)]
    write_csv(args.out / f'{args.name}.csv', COLUMNS, rows)


@contextlib.contextmanager
def _data(cfg: Config, args: argparse.Namespace) -> Iterator[str]:
    """Let a config's data be there: those of the command line, or scenes drawn for the purpose.

    Yields:
        What they are, for people.
    """
    if args.data_root:
        check_data(cfg, ('train',))
        yield 'data set'
        return
    dataset = first_dataset(cfg.train_dataloader.dataset)
    layout = scenes_layout(dataset.type)
    height, width = (48, 64) if args.quick else _SIZES[layout]
    with tempfile.TemporaryDirectory() as folder:
        WRITERS[layout](folder, args.scenes, 1, (height, width))
        set_data_root(cfg, folder)
        yield f'scenes of {width} x {height}'


def _measure_transforms(cfg: Config, images: int) -> list[Row]:
    """Measure each step of the training pipeline, in this process, by its own time."""
    init_default_scope(cfg.default_scope)
    with contextlib.redirect_stdout(None):
        dataset = DATASETS.build(first_dataset(cfg.train_dataloader.dataset))
    np.random.seed(0)
    seconds: dict[str, float] = defaultdict(float)
    for index in range(images):
        sample: Any = dataset.get_data_info(index % len(dataset))
        for step in dataset.pipeline.transforms:
            begin = time.process_time()
            sample = step(sample)
            seconds[type(step).__name__] += time.process_time() - begin
    seconds['all'] = sum(seconds.values())
    rows = [
        {'part': name, 'cpu_ms_per_image': 1e3 * took / images} for name, took in seconds.items()
    ]
    rows[-1]['images_s'] = images / seconds['all']
    return rows


def _measure_loader(cfg: Config, workers: int, args: argparse.Namespace) -> Row:
    """Measure a config's training loader, first as fast as it goes, then under a model's steps.

    A step is a sleep: the main process waits as it does for a GPU, and the workers go on.

    Args:
        cfg: Whose data are there.
        workers: How many, 0 for none.
        args: Those of the tool.
    """
    settings = cfg.train_dataloader
    settings.num_workers, settings.persistent_workers = workers, workers > 0
    # Without the pause at the end of an epoch, of which the few images here would make many.
    settings.sampler = dict(type='InfiniteSampler', shuffle=True)
    set_multi_processing(**cfg.env_cfg.mp_cfg)
    with contextlib.redirect_stdout(None), warnings.catch_warnings():
        # PyTorch warns of more workers than cores, and of `pin_memory` without a GPU.
        warnings.simplefilter('ignore')
        batches = iter(Runner.build_dataloader(settings, seed=0))
    for _ in range(2 * workers + 2):
        next(batches)
    count = -(-args.images // settings.batch_size)
    free = [_run(batches, count, 0.0) for _ in range(args.rounds)]
    seconds, _, cpu = map(float, np.median(free, 0))
    total, waited, _ = _run(batches, count, args.step / 1e3)
    # Or the workers would be left waiting at a pipe that nobody reads.
    del batches
    return {
        'part': 'loader',
        'workers': workers,
        'images_s': count * settings.batch_size / seconds,
        'main_cpu_ms': 1e3 * cpu / count,
        'step_ms': args.step,
        'data_ms': 1e3 * waited / count,
        'data_share': waited / total,
    }


def _run(batches: Iterator[Any], count: int, step: float) -> tuple[float, float, float]:
    """Take some batches; return the seconds of all, of waiting for them, of this process's CPU."""
    waited, begin, cpu = 0.0, time.perf_counter(), time.process_time()
    for _ in range(count):
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        time.sleep(step)
    return time.perf_counter() - begin, waited, time.process_time() - cpu
