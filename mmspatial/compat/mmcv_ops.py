"""Serve ``mmcv._ext`` from Python and torchvision, where mmcv came without compiled ops.

Without it ``import mmcv.ops``, and with it ``import mmdet``, fails: mmcv asks for all of its
compiled functions while it is imported. This file is executed under the name ``mmcv._ext``,
through ``mmspatial.compat.install``, only where the compiled module is missing.

The functions have mmcv's own signatures, conventions (results go into tensors that the caller
made) and meanings, on any device. Every other op exists as well, and raises on call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

_SERVED = 'nms, softnms, roi_align_forward/backward and sigmoid_focal_loss_forward/backward'


def _lacking(op: str) -> NotImplementedError:
    return NotImplementedError(
        f"mmcv's compiled op '{op}' is not available: this mmcv came without compiled ops, and "
        f'mmspatial stands in for {_SERVED} only. Choose a model or setting that does without '
        "it, or build mmcv's ops for this PyTorch (MMCV_WITH_OPS=1, "
        'https://mmcv.readthedocs.io/en/latest/get_started/build.html).'
    )


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith('_'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def lacking_op(*args: object, **kwargs: object) -> NoReturn:
        raise _lacking(name)

    return lacking_op


def get_compiler_version() -> str:
    """Say, where environments are reported, that nothing was compiled."""
    return f'none (mmspatial stands in, on torchvision {torchvision.__version__})'


def get_compiling_cuda_version() -> str:
    """Return mmcv's own words for ops built without CUDA."""
    return 'not available'


def _working(tensor: Tensor) -> Tensor:
    """Widen half precision, which torchvision's CPU kernels lack and coordinates outgrow."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


@torch.no_grad()
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Keep the boxes that overlap no better one by more than a threshold.

    A box is ``x2 - x1 + offset`` wide. Of equal scores the first wins, on every device.

    Args:
        boxes: (N, 4) corners.
        scores: (N,).
        iou_threshold: Overlap from above which the lesser box goes.
        offset: 0, or 1 for inclusive pixel coordinates.

    Returns:
        Indices of the kept boxes, best first.
    """
    boxes = _working(boxes)
    if offset:
        # Rounding x2 + 1 in single precision would cost digits that mmcv's x2 - x1 + 1 keeps.
        boxes = boxes.double() + boxes.new_tensor([0, 0, offset, offset])
    order = scores.argsort(descending=True, stable=True)
    # torchvision sorts unstably: give it the places instead of the scores.
    places = torch.arange(len(order), 0, -1, dtype=boxes.dtype, device=boxes.device)
    # mmcv compares at the precision of the boxes; torchvision compares with a double.
    threshold = torch.tensor(iou_threshold, dtype=boxes.dtype).item()
    return order[torch.ops.torchvision.nms(boxes[order], places, threshold)]


@torch.no_grad()
def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Take the best box again and again, and lower the scores of those which overlap it.

    Method 0 sets the score to 0 where the overlap reaches the threshold, 1 multiplies it with
    ``1 - iou`` there, 2 multiplies it with ``exp(-iou² / sigma)`` everywhere. Of equal scores
    the first wins.

    Args:
        boxes: (N, 4) corners.
        scores: (N,).
        dets: (N, 5); receives corners and lowered scores of the kept boxes in its first rows.
        iou_threshold: Overlap from which methods 0 and 1 act.
        sigma: Width of method 2.
        min_score: Boxes which fall below are dropped.
        method: 0 (naive), 1 (linear) or 2 (gaussian).
        offset: A box is ``x2 - x1 + offset`` wide.

    Returns:
        Indices of the kept boxes, best first.
    """
    scores, low, high = scores.clone(), boxes[:, :2], boxes[:, 2:]
    areas = (high - low + offset).prod(1)
    rest, kept = torch.arange(len(boxes), device=boxes.device), []
    while len(rest):
        at = int((scores[rest] == scores[rest].max()).nonzero()[0])
        best = rest[at]
        kept.append(best)
        rest = torch.cat((rest[:at], rest[at + 1 :]))
        sides = torch.minimum(high[best], high[rest]) - torch.maximum(low[best], low[rest])
        common = (sides + offset).clamp(min=0).prod(1)
        # Two boxes without area have no overlap, rather than the overlap 0 / 0.
        iou = (common / (areas[best] + areas[rest] - common)).nan_to_num(0)
        if method == 2:
            scores[rest] *= (-iou.square() / sigma).exp()
        else:
            scores[rest] *= torch.where(iou >= iou_threshold, (1 - iou) * method, 1)
        rest = rest[scores[rest] >= min_score]
    indices = torch.stack(kept) if kept else rest
    dets[: len(indices)] = torch.cat((boxes[indices], scores[indices, None]), 1)
    return indices


@torch.no_grad()
def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Average bilinear samples in each cell of a grid laid over each region.

    Args:
        input: (B, C, H, W).
        rois: (R, 5), image index and corners.
        output: (R, C, aligned_height, aligned_width), written.
        argmax_y: Belongs to maximum pooling, unused.
        argmax_x: Belongs to maximum pooling, unused.
        aligned_height: Cells per column.
        aligned_width: Cells per row.
        spatial_scale: Size of the map over size of the image.
        sampling_ratio: Samples per cell and direction; 0 takes one per unit of the map.
        pool_mode: 1, the average.
        aligned: Whether pixel centres lie at half integers.

    Raises:
        NotImplementedError: For ``pool_mode`` 0, the maximum, which torchvision lacks.
    """
    if pool_mode != 1:
        raise _lacking("roi_align_forward with pool_mode='max'")
    pooled = torch.ops.torchvision.roi_align(
        _working(input),
        rois.to(_working(input).dtype),
        spatial_scale,
        aligned_height,
        aligned_width,
        sampling_ratio,
        aligned,
    )
    output.copy_(pooled)


@torch.no_grad()
def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Write the gradient of ``roi_align_forward`` for its ``input`` into ``grad_input``.

    Raises:
        NotImplementedError: As ``roi_align_forward`` does.
    """
    if pool_mode != 1:
        raise _lacking("roi_align_backward with pool_mode='max'")
    grad = torch.ops.torchvision._roi_align_backward(
        _working(grad_output),
        rois.to(_working(grad_output).dtype),
        spatial_scale,
        aligned_height,
        aligned_width,
        *grad_input.shape,
        sampling_ratio,
        aligned,
    )
    grad_input.copy_(grad)


def _focal_terms(
    input: Tensor, target: Tensor, weight: Tensor, alpha: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sign of each truth, its factor, and log-probability of truth and of error."""
    input = _working(input)
    is_class = target[:, None] == torch.arange(input.shape[1], device=input.device)
    sign = 2 * is_class.to(input.dtype) - 1
    factor = torch.where(is_class, input.new_full((), alpha), input.new_full((), 1 - alpha))
    if len(weight):
        # mmcv reads beyond the weights for the background, the class after the last; it is 1.
        factor = factor * F.pad(weight, (0, 1), value=1.0)[target][:, None]
    return sign, factor, F.logsigmoid(sign * input), F.logsigmoid(-sign * input)


@torch.no_grad()
def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss of each class's own yes-or-no question.

    With ``p`` the probability of the truth::

        loss = -factor * (1 - p)**gamma * log(p)

    Logarithms stay exact for large logits, where mmcv's single precision saturates.

    Args:
        input: (N, C) logits.
        target: (N,) class indices; ``C`` is the background.
        weight: (C,) a weight for the rows of each class, or empty.
        output: (N, C), written.
        gamma: How much easy answers are discounted.
        alpha: ``factor`` where the truth is yes; ``1 - alpha`` is it elsewhere.
    """
    _, factor, log_true, log_false = _focal_terms(input, target, weight, alpha)
    output.copy_(-factor * (gamma * log_false).exp() * log_true)


@torch.no_grad()
def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivative of ``sigmoid_focal_loss_forward`` into ``grad_input``."""
    sign, factor, log_true, log_false = _focal_terms(input, target, weight, alpha)
    slope = gamma * log_true.exp() * log_true - log_false.exp()
    grad_input.copy_(sign * factor * (gamma * log_false).exp() * slope)
