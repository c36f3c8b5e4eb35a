"""What stands beyond the sidewalks: rows of houses, trees, fences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmspatial.datasets.scenes.figures import draw_tree
from mmspatial.datasets.scenes.sprite import Sprite
from mmspatial.datasets.scenes.stage import Stage
from mmspatial.datasets.scenes.structures import paint_building, paint_fence


class House(NamedTuple):
    """A ground rectangle in the street, the height of the walls, and whether it has a gable."""

    s0: float
    t0: float
    s1: float
    t1: float
    height: float
    pitched: bool


def paint_roadside(stage: Stage, rng: np.random.Generator, across: bool) -> None:
    """Paint houses and fenced gardens far to near; leave the trees of open lawns to the stage."""
    canvas, street = stage.canvas, stage.street
    houses: list[House] = []
    fenced: list[tuple[float, tuple[float, float]]] = []
    for sign, side in zip((-1, 1), street.sides, strict=True):
        if across and sign < 0:  # behind the camera
            continue
        front = street.edge + (rng.uniform(0, 0.8) if side == 'city' else rng.uniform(9, 14))
        houses += _row_of_houses(rng, sign, front, side, across)
        if side == 'city':
            continue
        count = int(rng.integers(5, 12))
        s = sign * rng.uniform(street.edge + 1.2, front - 1, count)
        trees = list(zip(s.tolist(), rng.uniform(-22, 45, count).tolist(), strict=True))
        if sign in stage.fences:
            fenced += [(stage.depth(tree), tree) for tree in trees]
        else:
            for tree in trees:
                _plant(stage, rng, tree)
    for house in sorted(houses, key=lambda h: -stage.depth(((h.s0 + h.s1) / 2, (h.t0 + h.t1) / 2))):
        paint_building(canvas, rng, house[:4], house.height, house.pitched)
    for _, tree in sorted(fenced, reverse=True):
        _plant(stage, rng, tree, at_once=True)
    for sign in stage.fences:
        start = -30.0 if rng.random() < 0.5 else rng.uniform(-8, 4)
        s = sign * (street.edge + rng.uniform(0.3, 0.9))
        paint_fence(canvas, rng, s, (start, 60.0), rng.uniform(0.8, 1.3))


def _row_of_houses(
    rng: np.random.Generator, sign: int, front: float, side: str, across: bool
) -> list[House]:
    """Return houses along one side of the street, some with gaps between them."""
    row, t = [], -30.0
    while t < 70:
        length, depth = rng.uniform(6, 13), rng.uniform(7, 10)
        if rng.random() < (0.2 if side == 'city' else 0.65):
            t += length * 0.8
            continue
        pitched = bool(rng.random() < (0.35 if side == 'city' else 0.8))
        height = rng.uniform(3.4, 6) if pitched else rng.uniform(5, 10 if across else 17)
        near, far = sorted((sign * front, sign * (front + depth)))
        row.append(House(near, t, far, t + length, height, pitched))
        t += length + (0.0 if rng.random() < 0.6 else rng.uniform(0.5, 3))
    return row


def _plant(
    stage: Stage, rng: np.random.Generator, place: tuple[float, float], at_once: bool = False
) -> None:
    """Put up a tree, now or when the stage is painted."""
    height, depth = rng.uniform(3.5, 7.5), stage.depth(place)
    if depth < 5:
        return

    def paint() -> None:
        layer = stage.canvas.layer('tree')
        draw_tree(Sprite.stand(stage.canvas, place, layer, stage.sunward), rng, height)

    if at_once:
        stage.canvas.shadow(place, height * 0.25, height * 0.25)
        paint()
    else:
        stage.cast_shadow(place, height * 0.25, height * 0.25)
        stage.add(depth, paint)
