"""The stand-in for mmcv's compiled ops, through mmcv's public functions, against definitions."""

from __future__ import annotations

import importlib.util
import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from mmcv import _ext
from mmcv.ops import (
    RoIAlign,
    batched_nms,
    box_iou_rotated,
    nms,
    roi_align,
    sigmoid_focal_loss,
    soft_nms,
)
from mmcv.utils import collect_env
from mmcv.utils.ext_loader import check_ops_exist
from mmengine.utils.dl_utils import mmcv_full_available
from plain_ops import Box, plain_focal_loss, plain_nms, plain_roi_align, plain_soft_nms

pytestmark = pytest.mark.skipif(
    not str(_ext.__file__).endswith('mmcv_ops.py'), reason='mmcv has compiled ops here'
)


def crowd(count: int, seed: int, whole: bool) -> tuple[list[Box], list[float]]:
    """Return overlapping boxes and scores; whole numbers make overlaps hit thresholds exactly."""
    draw = random.Random(seed)
    number = (lambda a, b: draw.randint(a, b)) if whole else draw.uniform
    boxes = []
    for _ in range(count):
        x, y = number(0, 12), number(0, 12)
        boxes.append([x, y, x + number(1, 12), y + number(1, 12)])
    # Few levels, so that many scores tie.
    return boxes, [draw.randint(1, 8) / 8 for _ in range(count)]


@pytest.mark.smoke
@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('threshold', ['1/2', '3/5', '7/10', '1/3'])
def test_nms_keeps_what_the_definition_keeps(offset: int, threshold: str) -> None:
    share = Fraction(threshold)
    for seed in range(10):
        boxes, scores = crowd(30, seed, whole=True)
        exact = [[Fraction(v) for v in box] for box in boxes]
        expected = plain_nms(exact, scores, share, offset)
        dets, kept = nms(torch.tensor(boxes).float(), torch.tensor(scores), float(share), offset)
        assert kept.tolist() == expected
        assert dets.tolist() == [[*boxes[i], scores[i]] for i in expected]


@pytest.mark.parametrize('offset', [0, 1])
def test_nms_with_fractional_boxes(offset: int) -> None:
    for seed in range(10):
        boxes, scores = crowd(30, seed, whole=False)
        kept = nms(torch.tensor(boxes), torch.tensor(scores), 0.4, offset)[1]
        assert kept.tolist() == plain_nms(boxes, scores, 0.4, offset)


@pytest.mark.smoke
def test_nms_with_offset_one_is_exact() -> None:
    # Widths 10 and 6, overlap exactly 0.6. The sum x2 + 1 of the second box, 1025 - 2**-14, is
    # no number of single precision: rounded, the overlap would exceed the threshold.
    low = 2.0**-14
    boxes = torch.tensor([[1018, 0, 1027, 0], [1019 - low, 0, 1024 - low, 0]])
    scores = torch.tensor([0.9, 0.8])
    assert nms(boxes, scores, 0.6, 1)[1].tolist() == [0, 1]
    assert nms(boxes, scores, 0.599, 1)[1].tolist() == [0]


@pytest.mark.smoke
@pytest.mark.parametrize('offset', [0, 1])
def test_nms_of_nothing_and_of_boxes_without_area(offset: int) -> None:
    dets, kept = nms(torch.zeros(0, 4), torch.zeros(0), 0.5, offset)
    assert dets.shape == (0, 5)
    assert kept.tolist() == []
    assert kept.dtype == torch.long
    points = torch.ones(3, 4)
    kept = nms(points, torch.tensor([0.1, 0.3, 0.2]), 0.5, offset)[1]
    assert kept.tolist() == ([1, 2, 0] if offset == 0 else [1])


def test_nms_of_equal_scores_prefers_the_first() -> None:
    box = [0.0, 0.0, 4.0, 4.0]
    boxes = torch.tensor([box] * 200 + [[9.0, 9.0, 12.0, 12.0]] * 200)
    assert nms(boxes, torch.full((400,), 0.5), 0.5)[1].tolist() == [0, 200]


def test_nms_takes_half_precision_and_numpy() -> None:
    boxes, scores = crowd(30, 3, whole=True)
    expected = plain_nms(boxes, scores, 0.5, 0)
    kept = nms(torch.tensor(boxes).bfloat16(), torch.tensor(scores).half(), 0.5)[1]
    assert kept.tolist() == expected
    kept = nms(np.array(boxes, np.float32), np.array(scores, np.float32), 0.5)[1]
    assert isinstance(kept, np.ndarray)
    assert kept.tolist() == expected


@pytest.mark.smoke
@pytest.mark.parametrize('split', [10000, 5])
def test_batched_nms_judges_classes_apart(split: int) -> None:
    boxes, scores = crowd(30, 1, whole=True)
    # Distinct scores: mmcv merges the classes by an unstable sort.
    scores = [score + i / 1024 for i, score in enumerate(scores)]
    labels = [i % 3 for i in range(30)]
    expected = []
    for label in range(3):
        own = [i for i in range(30) if labels[i] == label]
        kept = plain_nms([boxes[i] for i in own], [scores[i] for i in own], 0.3, 0)
        expected += [own[i] for i in kept]
    expected.sort(key=lambda i: -scores[i])
    dets, kept = batched_nms(
        torch.tensor(boxes).float(),
        torch.tensor(scores),
        torch.tensor(labels),
        {'type': 'nms', 'iou_threshold': 0.3, 'split_thr': split},
    )
    assert kept.tolist() == expected
    torch.testing.assert_close(dets[:, 4], torch.tensor(scores)[expected])


@pytest.mark.smoke
@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('method', ['naive', 'linear', 'gaussian'])
def test_soft_nms_lowers_scores_as_defined(method: str, offset: int) -> None:
    lower = {
        'naive': lambda iou: 0.0 if iou >= 0.3 else 1.0,
        'linear': lambda iou: 1 - iou if iou >= 0.3 else 1.0,
        'gaussian': lambda iou: math.exp(-(iou**2) / 0.5),
    }[method]
    for seed in range(10):
        boxes, scores = crowd(25, seed, whole=False)
        expected, lowered = plain_soft_nms(boxes, scores, lower, 0.15, offset)
        dets, kept = soft_nms(
            torch.tensor(boxes), torch.tensor(scores), 0.3, 0.5, 0.15, method, offset
        )
        assert kept.tolist() == expected
        assert len(set(expected)) < 25, 'the example drops nothing'
        torch.testing.assert_close(dets[:, :4], torch.tensor(boxes)[expected])
        torch.testing.assert_close(dets[:, 4], torch.tensor(lowered))


def test_soft_nms_of_nothing_and_of_boxes_without_area() -> None:
    dets, kept = soft_nms(torch.zeros(0, 4), torch.zeros(0))
    assert dets.shape == (0, 5)
    assert kept.tolist() == []
    dets, kept = soft_nms(torch.ones(2, 4), torch.tensor([0.4, 0.6]), method='gaussian')
    assert kept.tolist() == [1, 0]
    torch.testing.assert_close(dets[:, 4], torch.tensor([0.6, 0.4]))


# Regions: ordinary, over the border, wholly outside, thinner than a cell, on the other image.
ROIS = [
    [0, 1.2, 0.7, 9.4, 7.9],
    [0, -6.0, -3.0, 30.0, 9.0],
    [1, 60.0, 60.0, 70.0, 75.0],
    [1, 4.0, 4.0, 4.2, 5.0],
    [1, 0.0, 2.0, 11.0, 11.0],
]


@pytest.mark.smoke
@pytest.mark.parametrize('ratio', [0, 2])
@pytest.mark.parametrize('aligned', [True, False])
def test_roi_align_averages_samples_as_defined(aligned: bool, ratio: int) -> None:
    maps = torch.randn(2, 2, 5, 7, dtype=torch.float64)
    rois = torch.tensor(ROIS, dtype=torch.float64)
    got = RoIAlign((2, 3), 0.5, ratio, aligned=aligned)(maps, rois)
    expected = [
        [plain_roi_align(channel, roi[1:], (2, 3), 0.5, ratio, aligned) for channel in maps[image]]
        for roi in ROIS
        for image in [int(roi[0])]
    ]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    assert got[2].abs().sum() == 0


@pytest.mark.parametrize('ratio', [0, 2])
@pytest.mark.parametrize('aligned', [True, False])
def test_roi_align_gradient(aligned: bool, ratio: int) -> None:
    maps = torch.randn(2, 1, 4, 5, dtype=torch.float64, requires_grad=True)
    rois = torch.tensor(ROIS, dtype=torch.float64)
    pool = RoIAlign(2, 0.5, ratio, aligned=aligned)
    assert torch.autograd.gradcheck(lambda x: pool(x, rois), maps)


@pytest.mark.smoke
@pytest.mark.parametrize('aligned', [True, False])
def test_roi_align_of_no_regions_has_zero_gradient(aligned: bool) -> None:
    maps = torch.randn(2, 3, 4, 5, requires_grad=True)
    pooled = RoIAlign(7, 0.25, aligned=aligned)(maps, torch.zeros(0, 5))
    assert pooled.shape == (0, 3, 7, 7)
    pooled.sum().backward()
    assert maps.grad is not None
    assert maps.grad.count_nonzero() == 0


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_roi_align_in_half_precision_is_the_rounded_result(dtype: torch.dtype) -> None:
    maps = torch.randn(2, 2, 5, 7).to(dtype).requires_grad_()
    wide = maps.detach().float().requires_grad_()
    rois = torch.tensor(ROIS)
    got, expected = (roi_align(x, rois, (2, 2), 0.5, 0, 'avg', True) for x in (maps, wide))
    assert torch.equal(got, expected.to(dtype))
    got.sum().backward()
    expected.sum().backward()
    assert torch.equal(maps.grad, wide.grad.to(dtype))


def test_roi_align_pools_no_maximum() -> None:
    with pytest.raises(NotImplementedError, match=r"pool_mode='max'.*MMCV_WITH_OPS"):
        RoIAlign(2, pool_mode='max')(torch.zeros(1, 1, 4, 4), torch.tensor([[0.0, 0, 0, 3, 3]]))


@pytest.mark.smoke
@pytest.mark.parametrize('weight', [None, [0.3, 2.0, 1.5]])
@pytest.mark.parametrize('gamma', [2.0, 1.5, 0.0])
def test_focal_loss_and_gradient_as_defined(gamma: float, weight: list[float] | None) -> None:
    logits = torch.randn(6, 3, dtype=torch.float64) * 3
    target = torch.tensor([0, 1, 2, 3, 3, 1])
    weights = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    pair = [logits.clone().requires_grad_() for _ in range(2)]
    got = sigmoid_focal_loss(pair[0], target, gamma, 0.3, weights, 'none')
    expected = plain_focal_loss(pair[1], target, gamma, 0.3, weight)
    torch.testing.assert_close(got, expected)
    slope = torch.randn_like(logits)
    got.backward(slope)
    expected.backward(slope)
    torch.testing.assert_close(pair[0].grad, pair[1].grad)


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_focal_loss_gradcheck(reduction: str) -> None:
    logits = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 1, 2, 1])
    assert torch.autograd.gradcheck(
        lambda x: sigmoid_focal_loss(x, target, 2.0, 0.25, None, reduction), logits
    )


def test_focal_loss_stays_exact_for_large_logits() -> None:
    # The plain formula in single precision has 1 - p = 0 here, and a logarithm that saturates.
    logits = torch.tensor([[30.0, -30.0, 200.0]])
    loss = sigmoid_focal_loss(logits, torch.tensor([3]), 2.0, 0.25, None, 'none')
    torch.testing.assert_close(loss, torch.tensor([[22.5, 0.0, 150.0]]))


@pytest.mark.smoke
def test_a_missing_op_names_itself_and_the_remedy() -> None:
    with pytest.raises(NotImplementedError, match=r"'box_iou_rotated'.*MMCV_WITH_OPS"):
        box_iou_rotated(torch.zeros(1, 5), torch.zeros(1, 5))


def test_names_of_python_itself_are_no_ops() -> None:
    assert not hasattr(_ext, '__path__')
    assert not hasattr(_ext, '_repr_html_')
    assert callable(_ext.any_op_of_a_later_mmcv)


@pytest.mark.smoke
def test_hosts_probe_the_module_as_usual() -> None:
    spec = importlib.util.find_spec('mmcv._ext')
    assert spec is not None
    assert spec.origin == _ext.__file__
    assert mmcv_full_available()
    assert check_ops_exist()
    assert 'torchvision' in collect_env()['MMCV Compiler']
