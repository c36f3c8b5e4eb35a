"""Compose a street: choose a camera and a light, set things up in metres, paint far to near."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from mmspatial.datasets.scenes.backdrop import paint_ground, paint_ridge, paint_sky, paint_skyline
from mmspatial.datasets.scenes.canvas import Canvas
from mmspatial.datasets.scenes.classes import COCO_CATEGORIES, KINDS, SCENE_CLASSES
from mmspatial.datasets.scenes.roadside import paint_roadside
from mmspatial.datasets.scenes.stage import Stage
from mmspatial.datasets.scenes.street_life import populate
from mmspatial.datasets.scenes.world import Street, draw_camera, draw_light, draw_street

_OVERSAMPLE = 2  # the picture is painted this much larger and averaged: soft, honest edges


@dataclass(frozen=True)
class Instance:
    """One thing that COCO names: its category id, visible pixels (H, W) bool, crowd or not."""

    category_id: int
    mask: NDArray
    crowd: bool


@dataclass(frozen=True)
class Scene:
    """A picture and its truth, both read off the same layers.

    ``image`` is (H, W, 3) uint8 RGB; ``semantic`` (H, W) uint8 holds ADE20K's ids, 0 where ADE20K
    has no name; ``instances`` holds what COCO names, far to near.
    """

    image: NDArray
    semantic: NDArray
    instances: tuple[Instance, ...]


def draw_scene(rng: np.random.Generator, size: tuple[int, int]) -> Scene:
    """Draw a random street scene.

    Args:
        rng: Source of every choice: equal generators give equal scenes.
        size: Height and width in pixels, at least 32 each.

    Raises:
        ValueError: A side is shorter than 32 pixels.
    """
    height, width = size
    if min(height, width) < 32:
        raise ValueError(f'a scene of {height} x {width} pixels is too small: use at least 32 x 32')
    shape = (height * _OVERSAMPLE, width * _OVERSAMPLE)
    across = bool(rng.random() < 0.45)
    street = draw_street(rng, across)
    camera = draw_camera(rng, street, across, shape)
    light, zenith, tint = draw_light(rng)
    canvas = Canvas(np.zeros((*shape, 3), np.uint8), np.zeros(shape, np.uint16), camera, light)
    _paint_far(canvas, rng, street, zenith)
    stage = Stage(canvas, street, _draw_fences(rng, street, camera.position[0]))
    paint_roadside(stage, rng, across)
    populate(stage, rng)
    stage.paint()
    return _develop(canvas, rng, tint, (height, width))


def _draw_fences(rng: np.random.Generator, street: Street, eye: float) -> tuple[int, ...]:
    """Return the sides (-1, 1) with a fence before the lawn; none between street and eye (s)."""
    chances = zip((-1, 1), street.sides, rng.random(2), strict=True)
    return tuple(
        sign
        for sign, side, chance in chances
        if side == 'park' and chance < 0.45 and sign * eye < street.edge
    )


def _paint_far(canvas: Canvas, rng: np.random.Generator, street: Street, zenith: NDArray) -> None:
    """Paint all that lies beyond the street's reach, and the ground up to the horizon."""
    unit = canvas.ids.shape[0]
    paint_sky(canvas, rng, zenith, cover=rng.uniform(0.1, 0.75))
    if rng.random() < 0.65:
        blue = np.array((96, 110, 128)) + rng.normal(0, 10, 3)
        paint_ridge(canvas, rng, 'mountain', unit * rng.uniform(0.14, 0.3), blue, 60, 3)
    if rng.random() < 0.35:
        paint_skyline(canvas, rng, unit * rng.uniform(0.1, 0.24))
    green = np.array((62, 92, 48)) + rng.normal(0, 8, 3)
    paint_ridge(canvas, rng, 'tree', unit * rng.uniform(0.03, 0.1), green, 45, 12)
    paint_ground(canvas, rng, street)


def _develop(
    canvas: Canvas, rng: np.random.Generator, tint: NDArray, size: tuple[int, int]
) -> Scene:
    """Average the painting down, grade and grain it, and read the truth off the layers."""
    height, width = size
    rgb = cv2.resize(canvas.rgb, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32)
    rgb *= tint.astype(np.float32)
    rgb += rng.standard_normal((height, width, 1), np.float32) * np.float32(rng.uniform(1, 3))
    ids = canvas.ids[::_OVERSAMPLE, ::_OVERSAMPLE]
    ade = [SCENE_CLASSES.get(KINDS[kind].ade or '', 0) for kind, _ in canvas.layers]
    seen = np.bincount(ids.ravel(), minlength=len(canvas.layers))
    instances = tuple(
        Instance(COCO_CATEGORIES[KINDS[kind].coco], ids == layer, crowd)
        for layer, (kind, crowd) in enumerate(canvas.layers)
        if KINDS[kind].coco and seen[layer]
    )
    return Scene(np.clip(rgb, 0, 255).astype(np.uint8), np.array(ade, np.uint8)[ids], instances)
