"""Who and what is in the street: how often, how large, and where each belongs."""

from __future__ import annotations

import numpy as np

from mmspatial.datasets.scenes.figures import (
    draw_bench,
    draw_crowd,
    draw_dog,
    draw_kite,
    draw_person,
    draw_stop_sign,
    draw_streetlight,
    draw_traffic_light,
    draw_tree,
)
from mmspatial.datasets.scenes.sprite import Sprite
from mmspatial.datasets.scenes.stage import Band, Prop, Stage
from mmspatial.datasets.scenes.vehicles import BUS, CARS

_TRAFFIC_LIGHT = Prop('traffic light', draw_traffic_light, 0.33, 2.0, (3.1, 3.6), (4.5, 9), 0.045)
_STOP_SIGN = Prop('stop sign', draw_stop_sign, 0.52, 1.6, (2.5, 2.9), (4, 8.5), 0.09)
_CROWD = Prop('person', draw_crowd, 1.8, 0, (1.7, 1.9), (8, 14), 0.1, crowd=True)
_BENCH = Prop('bench', draw_bench, 0.95, 0, (0.92, 1.0), (4, 9), 0.08)
_PERSON = Prop('person', draw_person, 0.4, 0, (1.35, 1.9), (3.8, 11), 0.05)
_DOG = Prop('dog', draw_dog, 0.75, 0, (0.65, 0.9), (3.8, 7), 0.08)
_STREETLIGHT = Prop('streetlight', draw_streetlight, 0.4, 0, (4.2, 5.6), (5, 18), 0.03)
_TREE = Prop('tree', draw_tree, 1.6, 0, (4, 6), (5, 12), 0.05)


def populate(stage: Stage, rng: np.random.Generator) -> None:
    """Queue cars, people, animals and furniture, the large ones first; fly kites."""
    street = stage.street
    walks = _both_sides(street.road + 0.3, street.edge - 0.3)
    kerbs = _both_sides(street.road + 0.2, street.road + 0.7)
    lawns = tuple(
        band
        for sign, side, band in zip(
            (-1, 1), street.sides, _both_sides(street.edge, street.edge + 6), strict=True
        )
        if side == 'park' and sign not in stage.fences
    )
    lanes = (-street.road / 2, street.road / 2)
    if rng.random() < 0.25:
        stage.place_vehicle(rng, (BUS,), lanes)
    for _ in range(rng.integers(1, 5)):
        stage.place_vehicle(rng, CARS, lanes)
    road = ((-street.road, street.road),)
    for prop, bands, chances in (
        (_TRAFFIC_LIGHT, kerbs, (0.5, 0.5)),
        (_STOP_SIGN, kerbs, (0.4, 0.6)),
        (_CROWD, walks + lawns, (0.88, 0.12)),
        (_BENCH, walks + lawns, (0.5, 0.5)),
        (_PERSON, walks + walks + lawns, (0, 0, 0.2, 0.2, 0.2, 0.2, 0.2)),
        (_PERSON, road, (0.85, 0.15)),
        (_DOG, walks + lawns, (0.3, 0.45, 0.25)),
        (_STREETLIGHT, kerbs, (0.25, 0.25, 0.25, 0.25)),
        (_TREE, lawns, (0.5, 0.5)),
    ):
        for _ in range(rng.choice(len(chances), p=chances) if bands else 0):
            stage.place_prop(rng, prop, bands)
    _fly_kites(stage, rng)


def _both_sides(near: float, far: float) -> tuple[Band, Band]:
    """Return the bands of s between two distances from the street's middle."""
    return (-far, -near), (near, far)


def _fly_kites(stage: Stage, rng: np.random.Generator) -> None:
    """Put kites where the picture is free, in front of everything."""
    canvas = stage.canvas
    height, width = canvas.ids.shape
    for _ in range(rng.choice(3, p=(0.5, 0.38, 0.12))):
        size = rng.uniform(0.11, 0.2) * (height * width) ** 0.5
        foot = rng.uniform(0.1, 0.9) * width, rng.uniform(0.08, 0.7) * canvas.camera.horizon
        if stage.free(np.array([*foot, *foot]) + size / 2 * np.array([-1, -1, 1, 1]), 0.0):
            draw_kite(Sprite(canvas, foot, size, 8.0, canvas.layer('kite')), rng, 1.0)
