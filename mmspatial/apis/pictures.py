"""Draw a result over its image.

All arrays are RGB, ``(H, W, 3)`` and uint8; a result is a label map or `Instances`.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .lettering import PAPER, Colour, Rect, free_place, ink_on, text_size, write

Picture = NDArray[np.uint8]
Size = tuple[int, int]  # width, height

GREY: tuple[Colour, Colour] = ((236, 236, 236), (176, 176, 176))


class Classes(NamedTuple):
    """Names and colours of a data set's classes."""

    names: Sequence[str]
    palette: Sequence[Colour]


class Instances(NamedTuple):
    """K things in one image, in its pixels.

    Attributes:
        boxes: ``(K, 4)``: left, top, right, bottom.
        labels: ``(K,)``: class numbers.
        scores: ``(K,)``, none for the truth.
        masks: ``(K, H, W)``, bool; None if there are boxes only.
        crowd: ``(K,)``, bool: annotated groups, which evaluation ignores.
        colours: One for each, distinct ones by default.
    """

    boxes: NDArray[np.floating]
    labels: NDArray[np.integer]
    scores: NDArray[np.floating] | None = None
    masks: NDArray[np.bool_] | None = None
    crowd: NDArray[np.bool_] | None = None
    colours: Sequence[Colour] | None = None


Result = NDArray[np.integer] | Instances


def fit(image: Picture, least: int = 256, most: int | None = None) -> Size:
    """Return the size at which an image is shown, its proportions kept.

    Args:
        image: The image.
        least: A smaller short side grows to this, unless the long side would pass 1600.
        most: A longer long side shrinks to this.
    """
    height, width = image.shape[:2]
    short, long = sorted((height, width))
    scale = max(min(least / short, 1600 / long), 1.0)
    if most is not None:
        scale = min(scale, most / long)
    return max(round(width * scale), 1), max(round(height * scale), 1)


def resize(image: Picture, size: Size) -> Picture:
    """Resample an image smoothly."""
    if size == image.shape[1::-1]:
        return image
    return np.array(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))


def draw(
    image: Picture,
    result: Result,
    classes: Classes,
    size: Size | None = None,
    opacity: float = 0.55,
) -> Picture:
    """Draw a result over its image.

    Args:
        image: The image.
        result: What is in it: a label map ``(H, W)``, or instances.
        classes: Names and colours.
        size: Width and height of the picture, those of the image by default.
        opacity: Of the colours: 0 leaves the image, 1 hides it.

    Returns:
        The picture. Pixels without a class (255, "ignored") are hatched in grey.
    """
    size = size or image.shape[1::-1]
    canvas = resize(image, size)
    if isinstance(result, Instances):
        return _draw_instances(canvas, result, classes, image.shape[1::-1], opacity)
    labels = np.array(Image.fromarray(result.astype(np.int32)).resize(size, 0))
    return _blend(canvas, _paint(labels, classes.palette), opacity)


def instance_colours(count: int) -> list[Colour]:
    """Return colours for things in one image, neighbours in the list far apart in hue."""
    colours = []
    for i in range(count):
        # Steps of the golden ratio never come close to each other.
        hue, value = (0.58 + i * 0.618034) % 1, (0.95, 0.8)[i % 2]
        red, green, blue = colorsys.hsv_to_rgb(hue, 0.8, value)
        colours.append((round(red * 255), round(green * 255), round(blue * 255)))
    return colours


def coloured_like(found: Instances, truth: Instances) -> Instances:
    """Give things that were found the colours of the things that they are.

    Args:
        found: Things, sure ones first.
        truth: What is there.

    Returns:
        The same things with `colours`: that of the true box which overlaps most (by more than
        half, IoU) and is still free, else one that the truth does not have.
    """
    spare = instance_colours(len(truth.boxes) + len(found.boxes))
    known, spare = spare[: len(truth.boxes)], spare[len(truth.boxes) :]
    overlap = _iou(found.boxes, truth.boxes)
    colours = []
    for i in range(len(found.boxes)):
        best = int(overlap[i].argmax()) if len(known) else 0
        if len(known) and overlap[i, best] > 0.5:
            colours.append(known[best])
            overlap[:, best] = 0
        else:
            colours.append(spare[i])
    return found._replace(colours=colours)


def _iou(ours: NDArray[np.floating], theirs: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return intersection over union of boxes, ``(N, 4)`` and ``(M, 4)``, as ``(N, M)``."""
    corner = np.maximum(ours[:, None, :2], theirs[None, :, :2])
    sides = np.clip(np.minimum(ours[:, None, 2:], theirs[None, :, 2:]) - corner, 0, None)
    common = sides.prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (ours, theirs)]
    return common / np.maximum(areas[0][:, None] + areas[1] - common, 1e-9)


def known_labels(labels: NDArray[np.integer], count: int) -> NDArray[np.integer]:
    """Replace labels that are no class by `count`."""
    return np.where((labels >= 0) & (labels < count), labels, count)


def _paint(labels: NDArray[np.integer], palette: Sequence[Colour]) -> Picture:
    """Return the colour of each label, hatching where there is none."""
    count = len(palette)
    known = known_labels(labels, count)
    paint = np.array([*palette, PAPER], np.uint8)[known]
    unknown = known == count
    paint[unknown] = hatch(labels.shape, GREY)[unknown]
    return paint


def hatch(shape: tuple[int, ...], colours: Sequence[Colour]) -> Picture:
    """Return diagonal stripes of the colours, 4 pixels wide."""
    y, x = np.indices(shape[:2], np.int32, sparse=True)
    return np.array(colours, np.uint8)[(x + y) // 4 % len(colours)]


def _blend(image: Picture, paint: Picture, opacity: float) -> Picture:
    mixed = image * np.float32(1 - opacity) + paint * np.float32(opacity)
    return np.rint(mixed).astype(np.uint8)


def _draw_instances(
    canvas: Picture, found: Instances, classes: Classes, original: Size, opacity: float
) -> Picture:
    height, width = canvas.shape[:2]
    count = len(found.boxes)
    boxes = np.rint(found.boxes * ([width / original[0], height / original[1]] * 2)).astype(int)
    colours = found.colours or instance_colours(count)
    crowd = found.crowd if found.crowd is not None else np.zeros(count, bool)
    # Sure ones are labelled first and painted last.
    order = list(range(count) if found.scores is None else np.argsort(-found.scores, kind='stable'))
    thin = max(round(min(width, height) / 160), 1)
    if found.masks is not None:
        canvas = canvas.copy()
        for i in reversed(order):
            stripes = [colours[i], GREY[0]] if crowd[i] else [colours[i]]
            _tint(canvas, found.masks[i], stripes, opacity, max(thin // 2, 1))
    paper = Image.fromarray(canvas)
    pen = ImageDraw.Draw(paper)
    for i in reversed(order):
        left, top, right, bottom = boxes[i].tolist()
        frame = (left, top, max(right - 1, left), max(bottom - 1, top))
        pen.rectangle(frame, outline=colours[i], width=thin)
    text = max(round(min(width, height) / 26), 12)
    taken: list[Rect] = []
    for i in order:
        note = f' {found.scores[i]:.2f}' if found.scores is not None else ''
        words = classes.names[found.labels[i]] + (' (crowd)' if crowd[i] else note)
        wide, tall = text_size(words, text)
        pad = text // 4
        place = free_place(paper.size, Rect(*boxes[i].tolist()), (wide + 2 * pad, tall), taken)
        if place:
            taken.append(place)
            pen.rectangle((*place[:2], place.right - 1, place.bottom - 1), fill=colours[i])
            write(pen, (place.left + pad, place.top), words, text, ink_on(colours[i]))
    return np.array(paper)


def _tint(
    canvas: Picture, mask: NDArray[np.bool_], stripes: Sequence[Colour], opacity: float, thin: int
) -> None:
    """Colour a mask in place, its edge without transparency."""
    size = canvas.shape[1::-1]
    if size != mask.shape[::-1]:
        grey = Image.fromarray(mask.astype(np.uint8) * 255)
        mask = np.array(grey.resize(size, Image.Resampling.BILINEAR)) > 127
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        return
    around = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    inside, part = mask[around], canvas[around]
    paint = hatch(part.shape, stripes)
    part[inside] = _blend(part[inside], paint[inside], opacity)
    kernel = np.ones((2 * thin + 1,) * 2, np.uint8)
    core = cv2.erode(inside.astype(np.uint8), kernel, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    edge = inside & (core == 0)
    part[edge] = paint[edge]
