"""Upright boards that face the camera, drawn in metres."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmspatial.datasets.scenes.canvas import CIRCLE, Canvas, Colour


@dataclass(frozen=True)
class Sprite:
    """Draw in metres on an upright board that faces the camera.

    ``foot`` is the pixel of the origin, ``scale`` pixels per metre, ``mirror`` -1 or 1.
    """

    canvas: Canvas
    foot: tuple[float, float]
    scale: float
    depth: float
    layer: int
    mirror: int = 1

    @classmethod
    def stand(cls, canvas: Canvas, place: tuple[float, float], layer: int, mirror: int) -> Sprite:
        """Put a board on the ground at (s, t), which must lie in front of the camera."""
        view = canvas.camera.view([(place[0], 0.0, place[1])])
        (u, v), depth = canvas.camera.pixels(view)[0].tolist(), float(view[0, 2])
        return cls(canvas, (u, v), canvas.camera.focal / depth, depth, layer, mirror)

    @cached_property
    def _axes(self) -> NDArray:
        return np.array([self.mirror * self.scale, -self.scale])

    def polygon(self, points: ArrayLike, colour: Colour) -> None:
        """Fill a polygon of board points (n, 2), x right and y up."""
        pixels = np.asarray(points) * self._axes + self.foot
        self.canvas.polygon(pixels, self.canvas.light.fade(colour, self.depth), self.layer)

    def disc(
        self,
        x: float,
        y: float,
        radius: float,
        colour: Colour,
        squash: float = 1.0,
        tilt: float = 0.0,
    ) -> None:
        """Fill an ellipse: ``squash`` is height over width, ``tilt`` a turn in radians."""
        points = CIRCLE * [radius, radius * squash]
        if tilt:
            cos, sin = math.cos(tilt), math.sin(tilt)
            points = points @ np.array([[cos, sin], [-sin, cos]])
        self.polygon(points + np.array((x, y)), colour)

    def stroke(self, points: Sequence[tuple[float, float]], width: float, colour: Colour) -> None:
        """Draw a line with round joints through board points; ``width`` in metres."""
        for (x0, y0), (x1, y1) in pairwise(points):
            length = max(math.hypot(x1 - x0, y1 - y0), 1e-6)
            dx, dy = (y0 - y1) / length * width / 2, (x1 - x0) / length * width / 2
            self.polygon(
                [(x0 + dx, y0 + dy), (x1 + dx, y1 + dy), (x1 - dx, y1 - dy), (x0 - dx, y0 - dy)],
                colour,
            )
            self.disc(x1, y1, width / 2, colour)
