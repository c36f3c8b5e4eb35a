"""What `tools/bench_backbones.py` does: time and memory of whole backbones."""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmspatial.models.trunks.backbone import Backbone

from .backbone_names import Named, find_backbone
from .measure import Clock, Run, find_device, interleave, measuring, peak_memory, quantiles
from .options import DTYPES
from .plots import Panel, Style, curves, plot
from .published import published_form
from .records import (
    Row,
    add_speedups,
    circumstances,
    describe,
    print_rows,
    reason_of,
    short_name,
    write_csv,
)

# Ours and others' as they are; ours with batch norms folded; as its authors compute it.
FORMS = ('', 'fused', 'published')
COLUMNS = (
    'backbone', 'form', 'pass', 'dtype', 'compiled', 'size', 'batch', 'params_m', 'images_s',
    'p20_ms', 'p50_ms', 'p80_ms', 'min_ms', 'clock', 'speedup_over_published', 'peak_mb', 'reason',
    'device', 'threads', 'torch', 'triton', 'mmspatial', 'date',
)  # fmt: skip
_SHOWN = ('backbone', 'form', 'images_s', 'min_ms', 'speedup_over_published', 'peak_mb', 'reason')
_GROWTH = ('backbone', 'form', 'pass', 'time_exponent', 'memory_exponent')
# Side of the images on which models are warmed up.
_WARM = 64


def bench_backbones(args: argparse.Namespace) -> None:
    """Run the benchmark as a command line says.

    Args:
        args: As `options.parse_backbones_args` returns them.

    Raises:
        UserError: If there is no such device or backbone.
    """
    device = find_device(args.device)
    torch.set_num_threads(args.threads)
    found = [find_backbone(name) for name in args.backbones]
    clock = Clock(device, args.threads, quick=args.quick)
    where = circumstances(device, args.threads)
    common = {'dtype': args.dtype, 'compiled': int(args.compile), 'batch': args.batch, **where}

    rows: list[Row] = []
    with measuring(device):
        for kind, size in itertools.product(args.passes, sorted(args.sizes)):
            measured = _measure(found, kind, size, args, clock)
            rows += [{**common, 'pass': kind, 'size': size, **row} for row in measured]
            print(f'\n{kind}, {args.batch} x {size}x{size}, {args.dtype}')
            print_rows(measured, _SHOWN)

    name = args.name or f'backbones_{short_name(device)}_{args.dtype}'
    write_csv(args.out / f'{name}.csv', COLUMNS, rows)
    labels = [(named.name, form) for named in found for form in FORMS]
    styles = {
        f'{label} {form}'.strip(): Style(i // len(FORMS), FORMS.index(form))
        for i, (label, form) in enumerate(labels)
    }
    plot(args.out / f'{name}.png', _panels(rows), 'side of the image', describe(where), styles)
    growth = fit_growth(rows)
    if growth:
        print('\ngrowth: exponents of time and memory in the number of pixels')
        print_rows(growth, _GROWTH)
        write_csv(args.out / f'{name}_growth.csv', _GROWTH, growth)


def fit_growth(rows: Sequence[Row]) -> list[Row]:
    """Fit powers of the number of pixels to time and memory of each backbone.

    Args:
        rows: Measurements.

    Returns:
        A row for each backbone, form and pass that was measured at several sizes.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row['backbone'], row['form'], row['pass']), []).append(row)
    fitted = []
    for key, group in groups.items():
        row = dict(zip(_GROWTH, key, strict=False))
        for name, column in (('time_exponent', 'min_ms'), ('memory_exponent', 'peak_mb')):
            points = [(r['size'] ** 2, r[column]) for r in group if r.get(column)]
            if len(points) > 1:
                row[name] = float(np.polyfit(*np.log(points).T, 1)[0])
        if 'time_exponent' in row:
            fitted.append(row)
    return fitted


def _measure(
    found: Sequence[Named], kind: str, size: int, args: argparse.Namespace, clock: Clock
) -> list[Row]:
    """Measure one pass of all backbones at one size; those that cannot run say why."""
    rows: dict[tuple[str, str], Row] = {}
    runs: dict[tuple[str, str], Run] = {}
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(args.batch, 3, size, size, generator=generator).to(clock.device)
    for named in found:
        try:
            forms = _forms(named, size, kind, args)
        except Exception as error:
            rows[named.name, ''] = {
                'backbone': named.name, 'form': '', 'reason': reason_of(error)
            }  # fmt: skip
            continue
        for form, model in forms.items():
            key = named.name, form
            count = sum(parameter.numel() for parameter in model.parameters())
            rows[key] = {'backbone': named.name, 'form': form, 'params_m': count / 1e6}
            model = _prepare(model.to(clock.device), kind, args.compile)
            step = _Step(model, kind, clock.device, getattr(torch, DTYPES[args.dtype]))
            try:
                _warm_up(step, images, args.compile)
                rows[key]['peak_mb'] = peak_memory(lambda step=step: step(images), clock.device)
                runs[key] = lambda step=step: step(images)
            except Exception as error:
                rows[key]['reason'] = reason_of(error)
    for key, times in interleave(runs, clock, args.rounds).items():
        rows[key] |= {**quantiles(times), 'clock': clock.name}
        rows[key]['images_s'] = args.batch * 1e3 / rows[key]['p50_ms']
    for named in found:
        mine = [row for row in rows.values() if row['backbone'] == named.name]
        add_speedups(mine, 'form', {'speedup_over_published': 'published'})
    return list(rows.values())


def _forms(named: Named, size: int, kind: str, args: argparse.Namespace) -> dict[str, nn.Module]:
    """Build a backbone in all forms that are asked for and that it has."""
    torch.manual_seed(0)
    model = named.build(size)
    forms = {'': model}
    if isinstance(model, Backbone):
        if args.fuse and kind == 'forward':
            from mmspatial import fuse_for_inference

            forms['fused'] = fuse_for_inference(copy.deepcopy(model).eval())
        if args.published and (published := published_form(model, named.arch)) is not None:
            forms['published'] = published
    return forms


def _prepare(model: nn.Module, kind: str, compiled: bool) -> nn.Module:
    """Switch to the mode of a pass; no drop path, which not all formulations have."""
    for module in model.modules():
        if hasattr(module, 'drop_prob'):
            module.drop_prob = 0.0
    model.train(kind == 'train')
    return torch.compile(model, dynamic=False) if compiled else model


class _Step:
    """One pass of a model.

    Args:
        model: In the mode of the pass.
        kind: ``'forward'`` or ``'train'``.
        device: Where the model is.
        dtype: Of autocast; float32 for none.
    """

    def __init__(
        self, model: nn.Module, kind: str, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.model = model
        self.device, self.dtype = device, dtype
        self.optimizer = None
        if kind == 'train':
            # So small that weights stay what they are.
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)

    def __call__(self, images: Tensor) -> None:
        """Run it on images."""
        if self.optimizer is None:
            with torch.no_grad(), self._autocast():
                self.model(images)
            return
        with self._autocast():
            outputs = self.model(images)
        maps = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        sum(y.float().square().mean() for y in maps).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def _warm_up(step: _Step, images: Tensor, compiled: bool) -> None:
    """Load code and make the optimizer's state, on small images, so that tables are small too."""
    # Models that are tied to a size have no such tables; compiled ones would compile for both.
    if not compiled:
        with suppress(Exception):
            step(images[..., :_WARM, :_WARM])
            return
    step(images)


def _panels(rows: Sequence[Row]) -> list[list[Panel]]:
    """Make a row of panels for each pass: time and memory."""
    panels = []
    for kind in dict.fromkeys(row['pass'] for row in rows):
        mine = [row for row in rows if row['pass'] == kind]
        panels.append([
            Panel(f'{kind}: time', 'ms', curves(mine, _label, 'size', 'min_ms')),
            Panel(f'{kind}: memory', 'extra MB', curves(mine, _label, 'size', 'peak_mb')),
        ])  # fmt: skip
    return panels


def _label(row: Row) -> str:
    return f'{row["backbone"]} {row["form"]}'.strip()
