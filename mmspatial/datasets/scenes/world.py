"""What one scene assumes: a street, a camera in it, and the light."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmspatial.datasets.scenes.canvas import Camera, Light


@dataclass(frozen=True)
class Street:
    """A straight street: half-width of the road, width of each sidewalk, what lies beyond.

    ``sides`` holds 'city' or 'park' for s < 0 and s > 0; ``crossing`` is the t of a zebra
    crossing.
    """

    road: float
    walk: float
    sides: tuple[str, str]
    crossing: float

    @property
    def edge(self) -> float:
        """Return the distance from the street's middle to the outer edge of a sidewalk."""
        return self.road + self.walk


def draw_street(rng: np.random.Generator, across: bool) -> Street:
    """Draw the street's proportions and surroundings; ``across`` puts the camera in a park."""
    sides = [str(side) for side in rng.choice(['city', 'park'], 2, p=[0.45, 0.55])]
    if across:
        sides[0] = 'park'  # the camera stands there
    return Street(
        rng.uniform(2.9, 4.2), rng.uniform(1.7, 2.9), (sides[0], sides[1]), rng.uniform(-4, 14)
    )


def draw_camera(
    rng: np.random.Generator, street: Street, across: bool, shape: tuple[int, int]
) -> Camera:
    """Look along the street from within it, or across it from beside, into (H, W) pixels."""
    height, width = shape
    if across:
        place, yaw = -street.edge - rng.uniform(0.3, 3.0), np.pi / 2 + rng.normal(0, 0.22)
    else:
        left, right = (1.5 if side == 'park' else 0.9 for side in street.sides)
        place, yaw = rng.uniform(-left, right) * street.edge, rng.normal(0, 0.16)
        yaw -= 0.3 * place / street.edge  # look back towards the middle
    return Camera(
        yaw=yaw,
        position=(place, 0.0),
        height=rng.uniform(1.5, 2.2),
        focal=rng.uniform(0.85, 1.15) * (height * width) ** 0.5,
        centre=width * rng.uniform(0.45, 0.55),
        horizon=height * rng.uniform(0.38, 0.55),
    )


def draw_light(rng: np.random.Generator) -> tuple[Light, NDArray, NDArray]:
    """Return the light, the sky's colour at the zenith, and the tint of the whole picture."""
    zenith, haze, tint, shadow = (
        ((62, 124, 206), (190, 214, 234), (1.0, 1.0, 1.0), 0.55),  # noon
        ((92, 148, 214), (226, 228, 226), (1.02, 1.0, 0.97), 0.6),  # bright haze
        ((84, 104, 164), (246, 200, 150), (1.1, 0.97, 0.82), 0.6),  # evening
        ((146, 156, 168), (204, 208, 212), (0.93, 0.96, 1.0), 0.85),  # overcast
    )[rng.choice(4, p=[0.4, 0.25, 0.18, 0.17])]
    azimuth, elevation = rng.uniform(0, 2 * np.pi), rng.uniform(0.4, 1.1)
    sun = np.array(
        [
            np.cos(azimuth) * np.cos(elevation),
            np.sin(elevation),
            np.sin(azimuth) * np.cos(elevation),
        ]
    )
    light = Light(sun, np.array(haze, np.float32), rng.uniform(90, 200), shadow)
    return light, np.array(zenith, np.float32), np.array(tint) * rng.uniform(0.88, 1.06)
