"""What `tools/get_flops.py` does: the costs of a backbone, or of all parts of a model."""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from mmspatial.suggest import near

from .benchmarks.backbone_names import find_backbone
from .configs import config_folder, find_config, load_config
from .costs import Cost, attention_costs, empty_image, run_counted
from .errors import UserError
from .runner import blame_config, check_outputs

# Sides of an image, where neither the command line nor the config says: as papers count.
BACKBONE_SHAPE, SEGMENTOR_SHAPE, DETECTOR_SHAPE = (224, 224), (512, 512), (800, 1280)


@dataclass
class Report:
    """The costs of a model.

    Attributes:
        title: What was counted.
        rows: Name and cost of each part; what begins with blanks belongs to the part above.
        total: Sum of the parts that predict.
        notes: What must be known about the numbers.
    """

    title: str
    rows: list[tuple[str, Cost]] = field(default_factory=list)
    total: Cost = field(default_factory=lambda: Cost(0, 0))
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, cost: Cost) -> None:
        """Add a part that takes part in predictions."""
        self.rows.append((name, cost))
        self.total += cost

    def text(self) -> str:
        """Write a table, and the notes below it."""
        rows = [('', 'parameters', 'GMACs')]
        rows += [
            (name, f'{cost.parameters:,}' if cost.parameters else '', f'{cost.macs / 1e9:.3f}')
            for name, cost in [*self.rows, ('total', self.total)]
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f'{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}' for a, b, c in rows]
        return '\n'.join([self.title, *lines, '', *self.notes])


def get_flops(args: argparse.Namespace) -> Report:
    """Count as a command line says, and print the table.

    Args:
        args: Options ``config`` (a config or a backbone), ``shape``, ``backbone``, ``cfg_options``.

    Returns:
        The numbers.

    Raises:
        UserError: If there is no such config or backbone, or it has parts that cannot be counted.
    """
    if len(args.shape) > 2:
        raise UserError(f'--shape takes H W, or one side of a square, not {len(args.shape)} sides')
    shape = (args.shape[0], args.shape[-1]) if args.shape else None
    if _is_config(args.config):
        report = count_model(load_config(args), shape)
        if args.backbone:
            report.title = f'{args.backbone} in {report.title}'
    elif args.backbone or args.cfg_options:
        raise UserError(f"--backbone and --cfg-options are for configs, '{args.config}' is none")
    else:
        report = count_backbone(args.config, shape or BACKBONE_SHAPE)
    print(report.text())
    return report


def count_backbone(name: str, shape: tuple[int, int]) -> Report:
    """Count a backbone alone.

    Args:
        name: As `find_backbone` takes it.
        shape: Height and width of the image.

    Returns:
        The numbers.
    """
    model = find_backbone(name).build(max(shape)).eval().to('meta')
    report = Report(f'{name}, an image of {shape[0]} x {shape[1]}')
    _add_backbone(report, model, empty_image(*shape))
    return report


def count_model(cfg: Config, shape: tuple[int, int] | None = None) -> Report:
    """Count all parts of a segmentor (mmseg) or a detector (mmdet).

    Args:
        cfg: Its config.
        shape: Height and width of the image; None for the crop on which the config trains a
            segmentor, and for 800 x 1280 for a detector.

    Returns:
        The numbers.

    Raises:
        UserError: If the model cannot be built, or it has parts that cannot be counted.
    """
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    settings = copy.deepcopy(cfg.model)
    settings.backbone.init_cfg = None
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about defaults of losses
        with blame_config('the model of the config'):
            model = revert_sync_batchnorm(MODELS.build(settings)).eval()
    check_outputs(model, settings)
    preparation = settings.get('data_preprocessor') or {}
    if shape is None:
        crop = preparation.get('size') or SEGMENTOR_SHAPE
        shape = tuple(crop) if hasattr(model, 'decode_head') else DETECTOR_SHAPE
    divisor = preparation.get('pad_size_divisor') or 1
    padded = tuple(-(-side // divisor) * divisor for side in shape)

    report = Report(f'{Path(cfg.filename or "").stem}, an image of {shape[0]} x {shape[1]}')
    if padded != shape:
        report.title += f', padded to {padded[0]} x {padded[1]}'
    model.to('meta')
    image = empty_image(*padded, settings.backbone.get('in_channels', 3))
    maps = _add_backbone(report, model.backbone, image)
    if getattr(model, 'neck', None) is not None:
        maps = _add(report, 'neck', model.neck, maps)
    if hasattr(model, 'decode_head'):
        _add_segmentor(report, model, maps)
    else:
        _add_detector(report, model, maps)
    _note_rest(report, model)
    return report


def _is_config(name: str) -> bool:
    """Say whether a name is a config's; a name of nothing is refused with what is near it."""
    try:
        find_config(name)
    except UserError:
        configs = [file.stem for file in config_folder().glob('*.py')]
        bases = [file.stem for file in (config_folder() / '_base_' / 'backbones').glob('*.py')]
        if ':' not in name and name not in bases and near(name, configs):
            raise
        return False
    return True


def _add_backbone(report: Report, backbone: nn.Module, image: Tensor) -> Any:
    """Add a backbone and the attention in it; return its outputs."""
    outputs = _add(report, 'backbone', backbone, image)
    layers, products = attention_costs(backbone, image)
    if layers.macs:
        report.rows.append(('  attention layers', layers))
        if products:
            report.rows.append(('    products in them', Cost(0, products)))
    report.notes.append(
        'Multiply-adds of convolutions and matrix products; attention layers with their '
        'projections, the\nproducts in them being Q Kᵀ and A V (of channels in cross-covariance).'
    )
    if type(backbone).__name__ == 'AliasFreeViT':
        report.notes.append(
            'Resampling counts as an FFT, that is not at all; as matrix products, which maps of up '
            'to 512\npixels go through on a GPU, it costs more than all the rest.'
        )
    return outputs


def _add_segmentor(report: Report, model: nn.Module, maps: Sequence[Tensor]) -> None:
    _add(report, 'decode_head', model.decode_head, maps)
    auxiliary = getattr(model, 'auxiliary_head', None)
    if auxiliary is None:
        return
    several = isinstance(auxiliary, nn.ModuleList)
    for i, head in enumerate(auxiliary if several else [auxiliary]):
        name = f'auxiliary_head.{i}' if several else 'auxiliary_head'
        report.rows.append((name, _run(name, head, maps)[0]))
    report.notes.append('auxiliary_head works in training only: not in the total.')


def _add_detector(report: Report, model: nn.Module, maps: Sequence[Tensor]) -> None:
    if getattr(model, 'roi_head', None) is not None:
        _add(report, 'rpn_head', model.rpn_head, maps)
        boxes = model.test_cfg['rpn']['max_per_img']
        masks = model.test_cfg['rcnn']['max_per_img']
        for name, head, region in _region_heads(model.roi_head):
            count = masks if 'mask' in name else boxes
            _add(report, name, head, region.new_empty(count, *region.shape[1:]))
        report.notes.append(
            f'RoI heads: on {boxes} proposals, masks on {masks} boxes, the most that the config '
            'lets through.'
        )
    elif getattr(model, 'bbox_head', None) is not None:
        _add(report, 'bbox_head', model.bbox_head, maps)
    else:
        raise UserError(
            f"a model of type '{type(model).__name__}' cannot be counted: only segmentors with a "
            'decode_head, and detectors with a bbox_head or a roi_head can. Count its backbone: '
            'give the name of that instead of the config.'
        )


def _note_rest(report: Report, model: nn.Module) -> None:
    """Say which parts with parameters have not been counted."""
    counted = [name for name, _ in report.rows]
    rest = [
        name
        for name, part in [*model.named_children(), *_children_of(model, 'roi_head')]
        if any(True for _ in part.parameters())
        and not any(row == name or row.startswith(f'{name}.') for row in counted)
    ]
    if rest:
        report.notes.append(f'Not counted: {", ".join(rest)}.')


def _children_of(model: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    part = getattr(model, name, None)
    return [] if part is None else [(f'{name}.{k}', v) for k, v in part.named_children()]


def _region_heads(roi_head: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield the heads on regions, of each stage of a cascade, and one region for each."""
    for kind in ('bbox', 'mask'):
        extractors = getattr(roi_head, f'{kind}_roi_extractor', None)
        heads = getattr(roi_head, f'{kind}_head', None)
        if heads is None:
            continue
        is_cascade = isinstance(heads, nn.ModuleList)
        if not isinstance(extractors, nn.ModuleList):
            extractors = [extractors] * (len(heads) if is_cascade else 1)
        for i, head in enumerate(heads if is_cascade else [heads]):
            size = extractors[i].roi_layers[0].output_size
            height, width = (size, size) if isinstance(size, int) else size
            name = f'roi_head.{kind}_head' + (f'.{i}' if is_cascade else '')
            yield name, head, empty_image(height, width, extractors[i].out_channels)


def _add(report: Report, name: str, module: nn.Module, *inputs: Any) -> Any:
    """Count a part and add it; return its outputs."""
    cost, outputs = _run(name, module, *inputs)
    report.add(name, cost)
    return outputs


def _run(name: str, module: nn.Module, *inputs: Any) -> tuple[Cost, Any]:
    """Call a part with what the one before it puts out."""
    try:
        return run_counted(module, *inputs)
    except Exception as error:
        # Whatever a part of someone else's does on the meta device, or with so small an image.
        reason = (str(error).strip().splitlines() or ['no details'])[0]
        raise UserError(
            f"{name} of type '{type(module).__name__}' cannot be counted at this size: "
            f'{type(error).__name__}: {reason}'
        ) from error
