"""One training and one test step of a shipped config, on drawn scenes of a small size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config, ConfigDict
from mmengine.dataset import pseudo_collate
from mmengine.evaluator import Evaluator
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from torch import nn

from mmspatial.apis.data import set_data_root
from mmspatial.datasets import WRITERS

_LAYOUTS = {
    'ADE20KDataset': 'ade20k',
    'CocoDataset': 'coco',
    'COCOStuffDataset': 'cocostuff',
    'PascalContextDataset59': 'pascal59',
}
# What pipelines and preprocessors call their sizes in pixels, and heads and necks their widths.
_SIZES = ('scale', 'scales', 'crop_size', 'size')
_WIDTHS = ('channels', 'in_channels', 'out_channels', 'feat_channels', 'conv_out_channels',
           'fc_out_channels')  # fmt: skip
_SMALLER = 8
_NARROWER = 16
_NUM_ROIS = 16


class Steps(NamedTuple):
    """What came out of a training and a test step.

    Attributes:
        model: The model afterwards.
        losses: What would be logged.
        updated: Names of the parameters for which the optimiser has a state.
        prediction: Of the test image.
        metrics: What the config's evaluator says of it.
        classes: Names of the data set's classes.
    """

    model: nn.Module
    losses: dict[str, torch.Tensor]
    updated: set[str]
    prediction: BaseDataElement
    metrics: dict[str, float]
    classes: tuple[str, ...]


def draw_scenes(root: Path) -> dict[str, Path]:
    """Draw two scenes to train on and one to test on; return the folders by type of data set."""
    for layout in _LAYOUTS.values():
        WRITERS[layout](root / layout, 2, 1, (64, 80), 0, False)
    return {kind: root / layout for kind, layout in _LAYOUTS.items()}


def shrink(cfg: Config) -> None:
    """Make images an eighth of their size, take few proposals, and keep all detections."""
    model = cfg.model
    if 'size' in model.data_preprocessor:
        model.data_preprocessor.size = _eighth(model.data_preprocessor.size)
    for loader in (cfg.train_dataloader, cfg.test_dataloader):
        _shrink_pipeline(loader.dataset.pipeline)
    if 'roi_head' in model:
        stages = model.train_cfg.rcnn
        for stage in stages if isinstance(stages, list) else [stages]:
            stage.sampler.num = _NUM_ROIS
        model.test_cfg.rpn.max_per_img = _NUM_ROIS
        model.test_cfg.rcnn.score_thr = 0.0
    elif 'bbox_head' in model:
        model.test_cfg.score_thr = 0.0


def _shrink_pipeline(transforms: Any) -> None:
    for transform in transforms:
        if isinstance(transform, list):
            _shrink_pipeline(transform)
            continue
        for key in _SIZES:
            if key in transform:
                transform[key] = _eighth(transform[key])
        _shrink_pipeline(transform.get('transforms', ()))


def _eighth(size: Any) -> Any:
    if isinstance(size, (list, tuple)):
        return type(size)(_eighth(side) for side in size)
    return size // _SMALLER


def thin(cfg: Config) -> None:
    """Leave two blocks of each stage, four of a plain ViT, and make neck and heads narrow."""
    backbone = cfg.model.backbone
    row = MODELS.get(backbone.type).variants[backbone.arch]
    if 'depth' in row:
        backbone.arch = {**row, 'depth': 4}
        if 'out_indices' in backbone:
            backbone.out_indices = [0, 1, 2, 3]
    else:
        backbone.arch = {**row, 'depths': [min(depth, 2) for depth in row['depths']]}
    rest = [value for key, value in cfg.model.items() if key != 'backbone']
    # What reads the backbone keeps the number of channels that it has.
    readers = [cfg.model[key] for key in ('neck',) if key in cfg.model] or [
        cfg.model[key] for key in ('decode_head', 'auxiliary_head') if key in cfg.model
    ]
    kept = [reader.in_channels for reader in readers]
    _narrow(rest)
    for reader, channels in zip(readers, kept, strict=True):
        reader.in_channels = channels


def _narrow(settings: Any) -> None:
    if isinstance(settings, list):
        for value in settings:
            _narrow(value)
    elif isinstance(settings, dict):
        for key, value in settings.items():
            if key in _WIDTHS:
                is_list = isinstance(value, list)
                settings[key] = (
                    [width // _NARROWER for width in value] if is_list else value // _NARROWER
                )
            else:
                _narrow(value)


def train_and_test(cfg: Config, scenes: dict[str, Path]) -> Steps:
    """Do what MMEngine's runner does, once each: a step with two images, a test with one.

    Args:
        cfg: The config; its data are moved.
        scenes: Folders by type of data set.

    Returns:
        What came out.
    """
    set_data_root(cfg, str(scenes[cfg.train_dataloader.dataset.type]))
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    model.init_weights()
    optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    model.train()
    batch, _ = _load_batch(cfg.train_dataloader.dataset, 2)
    losses = model.train_step(batch, optim_wrapper)
    state = {id(parameter) for parameter in optim_wrapper.optimizer.state}
    updated = {name for name, parameter in model.named_parameters() if id(parameter) in state}

    model.eval()
    batch, metainfo = _load_batch(cfg.test_dataloader.dataset, 1)
    with torch.no_grad():
        (prediction,) = model.test_step(batch)
    evaluator = Evaluator([cfg.test_evaluator])
    evaluator.dataset_meta = metainfo
    evaluator.process([prediction], batch)
    metrics = evaluator.evaluate(1)
    return Steps(model, losses, updated, prediction, metrics, metainfo['classes'])


def _load_batch(settings: ConfigDict, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the first samples of a data set, which also says what its classes are."""
    # Packed for other processes, the few samples would cost a garbage collection.
    dataset = DATASETS.build({**settings, 'serialize_data': False})
    return pseudo_collate([dataset[i] for i in range(number)]), dataset.metainfo
