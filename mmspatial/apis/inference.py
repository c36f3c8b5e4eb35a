"""From an image to labels or instances, the same way for segmentors and detectors."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, MODELS, init_default_scope
from torch import nn

from .checkpoints import check_matches, read_checkpoint
from .errors import UserError
from .pictures import Classes, Instances, Picture, Result, instance_colours
from .runner import blame_config, check_outputs


@dataclass(frozen=True)
class Predictor:
    """A trained model with what turns an image into its input.

    Attributes:
        model: The segmentor or detector, in evaluation mode.
        pipeline: From ``{'img': BGR array}`` to the model's input.
        classes: Names and colours of its classes.
    """

    model: nn.Module
    pipeline: Compose
    classes: Classes


def load_model(cfg: Config, checkpoint: str | None, device: str = 'cpu') -> Predictor:
    """Build the model of a config with the weights of a checkpoint.

    The hosts' ``init_model`` and ``init_detector`` load whatever fits of a checkpoint; this
    refuses one that is of another model.

    Args:
        cfg: Config of a segmentor (mmseg) or a detector (mmdet).
        checkpoint: File, of MMEngine or with a bare state dict; None for a backbone as the config
            initialises it and everything else at random.
        device: Such as ``cpu``, ``cuda`` or ``cuda:1``.

    Returns:
        The model, ready to predict.

    Raises:
        UserError: If there is no such device, the config's model cannot be built, or the
            checkpoint is of another model.
        CheckpointError: If the checkpoint cannot be read.
    """
    check_device(device)
    content = read_checkpoint(checkpoint) if checkpoint else {}
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    model_cfg = copy.deepcopy(cfg.model)
    if checkpoint:
        # Pretrained weights would be read only to be replaced.
        model_cfg.backbone.init_cfg = None
    with warnings.catch_warnings():
        # About defaults of losses, which do not matter here.
        warnings.simplefilter('ignore')
        with blame_config('the model of the config'):
            model = MODELS.build(model_cfg)
    check_outputs(model, model_cfg)
    if checkpoint:
        state = {k.removeprefix('module.'): v for k, v in content['state_dict'].items()}
        check_matches(model, state, checkpoint)
        model.load_state_dict(state, strict=False)
    else:
        model.backbone.init_weights()
    # mmdet's heads look for their settings there.
    model.cfg = cfg
    dataset = first_dataset(cfg.test_dataloader.dataset)
    steps = [step for step in dataset.pipeline if step_name(step) != 'LoadAnnotations']
    if step_name(steps[0]) != 'LoadImageFromFile':
        raise UserError(
            f"the test pipeline starts with '{step_name(steps[0])}', not LoadImageFromFile"
        )
    pipeline = Compose([{**steps[0], 'type': 'LoadImageFromNDArray'}, *steps[1:]])
    classes = find_classes(content.get('meta', {}), dataset)
    return Predictor(model.to(device).eval(), pipeline, classes)


def predict(predictor: Predictor, image: Picture) -> Result:
    """Predict what is in an image.

    Args:
        predictor: From `load_model`.
        image: RGB, ``(H, W, 3)`` and uint8, of any size.

    Returns:
        The label map ``(H, W)`` of a segmentor, or the instances of a detector, sure ones first.
    """
    data = predictor.pipeline({'img': np.ascontiguousarray(image[..., ::-1]), 'img_id': 0})
    batch = {key: [value] for key, value in data.items()}
    with torch.no_grad():
        sample = predictor.model.test_step(batch)[0].cpu()
    if 'pred_sem_seg' in sample:
        return sample.pred_sem_seg.data[0].numpy()
    found = to_instances(sample.pred_instances, image.shape[:2])
    return select(found, np.argsort(-found.scores, kind='stable'))


def check_device(device: str) -> None:
    """Refuse a device that is not there.

    Args:
        device: Such as ``cpu``, ``cuda`` or ``cuda:1``.

    Raises:
        UserError: If it is not there.
    """
    try:
        kind = torch.device(device)
    except RuntimeError:
        raise UserError(f"--device '{device}' is none: use cpu, cuda or cuda:N") from None
    if kind.type == 'cuda' and (kind.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        there = f'only {count} GPU(s)' if count else 'no GPU that PyTorch can use'
        raise UserError(f'--device {device}: there is {there} here; use --device cpu')


def best_device() -> str:
    """Return ``cuda`` if there is a GPU, else ``cpu``."""
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def first_dataset(dataset: ConfigDict) -> ConfigDict:
    """Return the settings of a data set, or those of the first one inside wrappers."""
    while 'pipeline' not in dataset and ('dataset' in dataset or 'datasets' in dataset):
        dataset = dataset.dataset if 'dataset' in dataset else dataset.datasets[0]
    return dataset


def step_name(step: Mapping[str, Any]) -> str:
    """Return the name of a transform without its scope."""
    return str(step['type']).rpartition('.')[2]


def find_classes(meta: Mapping[str, Any], dataset: ConfigDict) -> Classes:
    """Find names and colours: in the checkpoint, else in the config's data set.

    Args:
        meta: The checkpoint's, may be empty.
        dataset: Settings of the data set.

    Returns:
        Names and colours; made-up colours if there are none.

    Raises:
        UserError: If there are no names.
    """
    known = {k.lower(): v for k, v in (meta.get('dataset_meta') or meta).items()}
    if not known.get('classes'):
        with DATASETS.switch_scope_and_registry(dataset.get('_scope_')) as registry:
            home = registry.get(dataset.type)
        known = {**getattr(home, 'METAINFO', {}), **(dataset.get('metainfo') or {})}
    if not known.get('classes'):
        raise UserError(
            f"neither the checkpoint nor '{dataset.type}' names the classes: "
            f'set `metainfo` of the test data set in the config'
        )
    names = list(known['classes'])
    palette = known.get('palette')
    if not isinstance(palette, Sequence) or len(palette) < len(names):
        palette = instance_colours(len(names))
    return Classes(names, [tuple(int(v) for v in colour) for colour in palette])


def to_instances(data: Any, size: tuple[int, int]) -> Instances:
    """Convert mmdet's instances, predicted or annotated.

    Args:
        data: ``InstanceData`` on the CPU.
        size: Height and width of the image.
    """
    boxes = getattr(data.bboxes, 'tensor', data.bboxes).numpy().reshape(-1, 4)
    masks = data.get('masks')
    if masks is not None:
        # Arrays of the truth are in `BitmapMasks` or `PolygonMasks`, predictions are tensors.
        masks = masks.to_ndarray() if hasattr(masks, 'to_ndarray') else masks.numpy()
        masks = masks.astype(bool).reshape(-1, *size)
    scores = data.scores.numpy() if 'scores' in data else None
    return Instances(boxes, data.labels.numpy(), scores, masks)


def select(found: Instances, which: np.ndarray) -> Instances:
    """Return some of the instances.

    Args:
        found: Instances without colours.
        which: Their numbers, or a mask.
    """
    return Instances(*(field[which] if field is not None else None for field in found))
