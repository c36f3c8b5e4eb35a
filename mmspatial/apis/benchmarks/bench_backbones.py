"""What `tools/bench_backbones.py` does: time and memory of whole backbones."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from mmspatial.models.fuse import fuse_for_inference
from mmspatial.models.trunks.backbone import Backbone

from . import growth, profiles, targets
from .backbone_names import Named, find_backbone
from .backbone_targets import backbone_targets
from .measure import Clock, Run, find_device, interleave, measuring, peak_memory, quantiles
from .options import DTYPES
from .parts import FORMS, Part
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

# What is timed.
_KEY = ('backbone', 'form', 'dtype')
COLUMNS = (
    'part', 'backbone', 'form', 'pass', 'dtype', 'size', 'batch', 'params_m', 'images_s', 'p20_ms',
    'p50_ms', 'p80_ms', 'min_ms', 'clock', 'speedup_over_published', 'speedup_over_eager',
    'peak_mb', 'reason', 'device', 'threads', 'torch', 'triton', 'mmspatial', 'date',
)  # fmt: skip
_PROFILE = ('backbone', 'form', 'pass', 'dtype', 'size', *profiles.COLUMNS)
_SHOWN = (
    *_KEY, 'images_s', 'min_ms', 'speedup_over_published', 'speedup_over_eager', 'peak_mb',
    'reason',
)  # fmt: skip
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
    named = {name: find_backbone(name) for part in args.parts for name in part.backbones}
    clock = Clock(device, args.threads, quick=args.quick)
    where = circumstances(device, args.threads)
    name = args.name or '_'.join((
        'backbones', short_name(device), *(args.parts[0].dtypes if args.backbones else ())
    ))  # fmt: skip

    rows: list[Row] = []
    operators: list[Row] = []
    with measuring(device):
        for part in args.parts:
            for kind, size in itertools.product(part.passes, sorted(part.sizes)):
                words = part.name, kind, f'{part.batch} x {size}x{size}', *part.dtypes
                print(f'\n{", ".join(filter(None, words))}', flush=True)
                found = [named[name] for name in part.backbones]
                common = {'part': part.name, 'pass': kind, 'size': size, 'batch': part.batch}
                measured, profiled = _measure(found, kind, size, part, clock, args.rounds)
                rows += [{**common, **row, **where} for row in measured]
                operators += [{'pass': kind, 'size': size, **row} for row in profiled]
                print_rows(measured, _SHOWN)
                _print_profiles(profiled)
                # What an interrupted run has measured is there.
                write_csv(args.out / f'{name}.csv', COLUMNS, rows)

    if operators:
        write_csv(args.out / f'{name}_profile.csv', _PROFILE, operators)
    shown = rows if args.backbones else overview(rows) or rows
    plot(
        args.out / f'{name}.png', _panels(shown), 'side of the image', describe(where),
        _styles(shown),
    )  # fmt: skip
    fitted = growth.fit_growth(rows)
    if fitted:
        print('\ngrowth: exponents of time and memory in the number of pixels')
        print_rows(fitted, growth.COLUMNS[1:])
        write_csv(args.out / f'{name}_growth.csv', growth.COLUMNS, fitted)
    if not args.backbones and device.type == 'cpu':
        # The images of a trial are of other sizes.
        reached = backbone_targets([] if args.quick else rows)
        print('\ntargets, by the fastest of the rounds', targets.summary(reached), sep='\n')
        targets.write_json(args.out / f'targets_{name}.json', reached, where)


def overview(rows: Sequence[Row]) -> list[Row]:
    """Choose what the plot of the target run shows: ours and published, over three sizes or more.

    Args:
        rows: Of all parts; where two have measured the same, that of the earlier one is shown.

    Returns:
        Those that are shown, if any.
    """
    same: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        is_plain = (row['pass'], row['dtype'], row['batch']) == ('forward', 'fp32', 1)
        if is_plain and row['form'] in ('', 'published'):
            same.setdefault((row['backbone'], row['form'], row['size']), row)
    sizes = Counter(backbone for backbone, form, _ in same if not form)
    return [row for row in same.values() if sizes[row['backbone']] > 2]


def _measure(
    found: Sequence[Named], kind: str, size: int, part: Part, clock: Clock, rounds: int
) -> tuple[list[Row], list[Row]]:
    """Measure one pass of a part's backbones at one size; those that cannot run say why.

    Args:
        found: The backbones.
        kind: The pass.
        size: Side of the images.
        part: See `Part`.
        clock: See `Clock`.
        rounds: See `interleave`.

    Returns:
        A row for each that was to be timed, and the rows of their profiles, if any.
    """
    rows: dict[tuple[str, ...], Row] = {}
    runs: dict[tuple[str, ...], Run] = {}
    # Compiled code of other sizes counts towards the most that there may be of a function.
    torch.compiler.reset()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(part.batch, 3, size, size, generator=generator).to(clock.device)
    for backbone in found:
        try:
            forms = _forms(backbone, size, kind, part.forms)
        except Exception as error:
            for dtype in part.dtypes:
                key = backbone.name, '', dtype
                rows[key] = {**dict(zip(_KEY, key, strict=True)), 'reason': reason_of(error)}
            continue
        for (form, model), dtype in itertools.product(forms.items(), part.dtypes):
            key = backbone.name, form, dtype
            rows[key] = {**dict(zip(_KEY, key, strict=True)), 'params_m': _count(model) / 1e6}
            model = _prepare(model.to(clock.device), kind)
            step = _Step(model, kind, clock.device, getattr(torch, DTYPES[dtype]))
            try:
                _warm_up(step, images, compiled=form == 'compiled')
                rows[key]['peak_mb'] = peak_memory(lambda step=step: step(images), clock.device)
                runs[key] = lambda step=step: step(images)
            except Exception as error:
                rows[key]['reason'] = reason_of(error)
    for key, times in interleave(runs, clock, rounds).items():
        rows[key] |= {**quantiles(times), 'clock': clock.name}
        rows[key]['images_s'] = part.batch * 1e3 / rows[key]['p50_ms']
    for backbone, dtype in itertools.product(found, part.dtypes):
        mine = [row for (name, _, of), row in rows.items() if (name, of) == (backbone.name, dtype)]
        over = {'speedup_over_published': 'published', 'speedup_over_eager': ''}
        add_speedups(mine, 'form', over)
    profiled = [
        {**dict(zip(_KEY, key, strict=True)), **row}
        for key, run in (runs.items() if part.profile else ())
        for row in profiles.profile_operators(run, clock.device)
    ]
    return list(rows.values()), profiled


def _forms(named: Named, size: int, kind: str, wanted: Sequence[str]) -> dict[str, nn.Module]:
    """Build a backbone in all forms that are wanted and that it has."""
    torch.manual_seed(0)
    model = named.build(size)
    forms = {'': model}
    ours = isinstance(model, Backbone)
    folds = ours and kind == 'forward' and not {'fused', 'compiled'}.isdisjoint(wanted)
    fused = fuse_for_inference(model) if folds else model
    if 'fused' in wanted and folds:
        forms['fused'] = fused
    if 'compiled' in wanted:
        forms['compiled'] = torch.compile(fused, dynamic=False)
    if 'published' in wanted and ours:
        published = published_form(model, named.arch)
        if published is not None:
            forms['published'] = published
    return forms


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _prepare(model: nn.Module, kind: str) -> nn.Module:
    """Switch to the mode of a pass; no drop path, which not all formulations have."""
    for module in model.modules():
        if hasattr(module, 'drop_prob'):
            module.drop_prob = 0.0
    return model.train(kind == 'train')


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


def _warm_up(step: _Step, images: Tensor, *, compiled: bool) -> None:
    """Load code and make the optimizer's state, on small images, so that tables are small too."""
    # Models that are tied to a size have no such tables; compiled ones would compile for both.
    if not compiled:
        with suppress(Exception):
            step(images[..., :_WARM, :_WARM])
            return
    step(images)


def _print_profiles(rows: Sequence[Row]) -> None:
    """Print the operators of each that was profiled."""
    for label, group in itertools.groupby(rows, _label):
        print(f'\n{label}, by operator')
        print_rows(list(group), profiles.COLUMNS)


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


def _styles(rows: Sequence[Row]) -> dict[str, Style]:
    """Give each backbone a colour, and each form and dtype a kind of line."""
    colours = list(dict.fromkeys(row['backbone'] for row in rows))
    lines = list(dict.fromkeys((row['form'], row['dtype']) for row in rows))
    lines.sort(key=lambda line: FORMS.index(line[0]))
    styles = {
        _label(row): Style(colours.index(row['backbone']), lines.index((row['form'], row['dtype'])))
        for row in rows
    }
    return dict(sorted(styles.items(), key=lambda item: item[1].colour))


def _label(row: Mapping[str, Any]) -> str:
    dtype = '' if row['dtype'] == 'fp32' else row['dtype']
    return ' '.join(word for word in (row['backbone'], row['form'], dtype) if word)
