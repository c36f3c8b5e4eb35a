"""mmcv's ops as their definitions say, loop by loop and slow, to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import torch
from torch import Tensor

Box = list[float]


def overlap(a: Box, b: Box, offset: int) -> float | Fraction:
    """Return intersection over union, exact if the numbers are; 0 for two empty boxes."""
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]) + offset)
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]) + offset)
    common = width * height
    areas = [(c[2] - c[0] + offset) * (c[3] - c[1] + offset) for c in (a, b)]
    union = sum(areas) - common
    return common / union if union else 0.0


def plain_nms(boxes: list[Box], scores: list[float], threshold: float, offset: int) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        if all(overlap(boxes[k], boxes[i], offset) <= threshold for k in kept):
            kept.append(i)
    return kept


def plain_soft_nms(
    boxes: list[Box],
    scores: list[float],
    lower: Callable[[float], float],
    min_score: float,
    offset: int,
) -> tuple[list[int], list[float]]:
    scores, rest, kept = list(scores), list(range(len(boxes))), []
    while rest:
        best = max(rest, key=lambda i: scores[i])
        kept.append(best)
        rest.remove(best)
        for i in rest:
            scores[i] *= lower(overlap(boxes[best], boxes[i], offset))
        rest = [i for i in rest if scores[i] >= min_score]
    return kept, [scores[i] for i in kept]


def plain_roi_align(
    image: Tensor, roi: list[float], size: tuple[int, int], scale: float, ratio: int, aligned: bool
) -> list[list[float]]:
    """Average bilinear samples of one channel, as the paper's figure says, loop by loop."""
    height, width = image.shape
    x1, y1, x2, y2 = (v * scale - (0.5 if aligned else 0.0) for v in roi)
    w, h = x2 - x1, y2 - y1
    if not aligned:
        w, h = max(w, 1.0), max(h, 1.0)
    cell_h, cell_w = h / size[0], w / size[1]
    count_y, count_x = ratio or math.ceil(cell_h), ratio or math.ceil(cell_w)

    def sample(y: float, x: float) -> float:
        if not (-1 <= y <= height and -1 <= x <= width):
            return 0.0
        y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
        total = 0.0
        for i, j in product(range(height), range(width)):
            total += max(0.0, 1 - abs(y - i)) * max(0.0, 1 - abs(x - j)) * image[i, j].item()
        return total

    def cell(row: int, column: int) -> float:
        samples = [
            sample(
                y1 + (row + (i + 0.5) / count_y) * cell_h,
                x1 + (column + (j + 0.5) / count_x) * cell_w,
            )
            for i, j in product(range(count_y), range(count_x))
        ]
        return sum(samples) / max(len(samples), 1)

    return [[cell(row, column) for column in range(size[1])] for row in range(size[0])]


def plain_focal_loss(
    logits: Tensor, target: Tensor, gamma: float, alpha: float, weight: list[float] | None
) -> Tensor:
    rows = []
    for n, c in product(*map(range, logits.shape)):
        is_class = target[n].item() == c
        p = torch.sigmoid(logits[n, c] if is_class else -logits[n, c])
        loss = -(alpha if is_class else 1 - alpha) * (1 - p) ** gamma * torch.log(p)
        if weight is not None:
            loss = loss * [*weight, 1.0][int(target[n])]
        rows.append(loss)
    return torch.stack(rows).reshape(logits.shape)
