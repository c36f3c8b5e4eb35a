"""What `tools/shift_consistency.py` does."""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from mmseg.models import EncoderDecoder
from torch import Tensor, nn
from torch.utils.data import Subset

from mmspatial.compat.checkpoint import TRUST_VARIABLE

from .configs import load_config
from .data import check_data
from .errors import UserError
from .folders import make_folder
from .inference import best_device, load_model
from .runner import blame_config
from .shifts import Protocol, Tally, tally

Row = dict[str, Any]
# Okabe and Ito's, which people with any colour vision tell apart.
_COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7')


def shift_consistency(args: argparse.Namespace) -> list[Row]:
    """Measure a segmentor under shifts as a command line says; print, write and plot the table.

    Args:
        args: Options as `analysis_options.parse_shift_args` returns them.

    Returns:
        The rows of the table.

    Raises:
        UserError: For anything that the user can mend.
        CheckpointError: If the checkpoint cannot be read.
    """
    if args.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = '1'
    cfg = load_config(args)
    if cfg.get('default_scope') == 'mmdet':
        # Before the data, whose absence would send the user for the wrong ones.
        raise UserError('shifts are measured for segmentors; this is the config of a detector')
    check_data(cfg, ('test',))
    device = args.device or best_device()
    model = load_model(cfg, args.checkpoint, device).model
    segmentor = _Logits(model)
    make_folder(args.out_dir, '--out-dir')

    protocols = [
        Protocol(kind, args.max_shift, args.parts, args.every, args.ideal, args.divisor)
        for kind in dict.fromkeys(args.kinds)
    ]
    tallies = {
        protocol: [Tally(size, model.num_classes) for size, _ in protocol.shifts()]
        for protocol in protocols
    }
    for image, truth in _samples(cfg, model, args.limit, args.divisor):
        for protocol, counts in tallies.items():
            try:
                tally(
                    segmentor, image, truth, protocol, counts,
                    ignore=model.decode_head.ignore_index, align_corners=model.align_corners,
                )  # fmt: skip
            except ValueError as error:
                raise UserError(f'--kinds {protocol.kind}: {error}') from error

    rows = [
        {'kind': protocol.kind, 'shifts': counts.shifts, **counts.row()}
        for protocol, levels in tallies.items()
        for counts in levels
    ]
    folder = Path(args.out_dir).expanduser()
    _print(rows)
    _write(rows, folder / 'shifts.csv')
    _plot(rows, folder / 'shifts.png')
    print(f'written: {folder / "shifts.csv"} and {folder / "shifts.png"}')
    return rows


class _Logits:
    """Call a segmentor of mmseg for its logits, before they are resized.

    Args:
        model: The segmentor.

    Raises:
        UserError: If it has no logits for each pixel and class.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, EncoderDecoder):
            raise UserError(f'{type(model).__name__} is no segmentor of mmseg (EncoderDecoder)')
        self.model = model

    def __call__(self, images: Tensor) -> Tensor:
        """Map ``(B, 3, h, w)`` to ``(B, classes, H, W)``."""
        logits = self.model(images, mode='tensor')
        classes = self.model.num_classes
        if not isinstance(logits, Tensor) or logits.shape[1] != classes:
            head = type(self.model.decode_head).__name__
            raise UserError(f'{head} has no logits for each pixel and each of {classes} classes')
        return logits


def _samples(
    cfg: Config, model: nn.Module, limit: int | None, divisor: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield test images as the model sees them, with the truth at their resolution.

    Args:
        cfg: Config with ``test_dataloader``.
        model: Its data preprocessor is used.
        limit: How many images at most, evenly spaced; None for all.
        divisor: Images are cut at the bottom and right to sides divisible by it.

    Yields:
        ``(1, 3, h, w)`` and ``(h, w)``.

    Raises:
        UserError: If an image has no truth, or nothing is left of it.
    """
    with blame_config('test_dataloader'):
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
        count = min(limit or len(dataset), len(dataset))
        chosen = Subset(dataset, [i * len(dataset) // count for i in range(count)])
        loader = Runner.build_dataloader(
            {**cfg.test_dataloader, 'dataset': chosen, 'batch_size': 1}
        )
    for i, data in enumerate(loader):
        batch = model.data_preprocessor(data, False)
        inputs, (sample,) = batch['inputs'], batch['data_samples']
        if 'gt_sem_seg' not in sample:
            raise UserError('the test pipeline has no LoadAnnotations: there is no truth')
        height, width = (side // divisor * divisor for side in inputs.shape[2:])
        if not height or not width:
            raise UserError(
                f'{sample.img_path}: smaller than --divisor {divisor}, nothing is left of it'
            )
        labels = sample.gt_sem_seg.data[None].float()
        truth = F.interpolate(labels, inputs.shape[2:])[0, 0].long().to(inputs.device)
        yield inputs[..., :height, :width], truth[:height, :width]
        if (i + 1) * 10 // count > i * 10 // count:
            print(f'{i + 1} of {count} images', flush=True)


def _print(rows: Sequence[Row]) -> None:
    """Print a table, shares in per cent."""
    table = [[name.replace('_', ' ') for name in rows[0]]]
    for row in rows:
        kind, shifts, size, *shares = row.values()
        table.append([kind, f'{shifts}', f'{size:g}', *(f'{100 * share:.2f}' for share in shares)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print('  '.join(f'{word:>{width}}' for word, width in zip(line, widths, strict=True)))


def _write(rows: Sequence[Row], path: Path) -> None:
    """Write the table as CSV, shares from 0 to 1."""
    with path.open('w', newline='') as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _plot(rows: Sequence[Row], path: Path) -> None:
    """Plot consistency and mIoU over the size of the shift, a colour for each kind."""
    figure = Figure(figsize=(9, 3.6), layout='constrained')
    axes = figure.subplots(1, 2)
    for axis, name in zip(axes, ('consistency', 'mIoU'), strict=True):
        for i, kind in enumerate(dict.fromkeys(row['kind'] for row in rows)):
            some = [row for row in rows if row['kind'] == kind]
            where = [row['shift'] for row in some]
            for prefix, style in (('', '--'), ('worst_', '-')):
                values = [100 * row[prefix + name] for row in some]
                label = f'{kind}, {"worst up to" if prefix else "mean at"} this size'
                axis.plot(where, values, style, color=_COLOURS[i], marker='.', label=label)
        axis.set_xlabel('shift in pixels')
        axis.set_ylabel(f'{name} in %')
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside right upper', fontsize=8)
    figure.savefig(path, dpi=150)
