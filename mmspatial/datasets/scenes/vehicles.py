"""Cars and buses: a side profile drawn out to the vehicle's width."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmspatial.datasets.scenes.canvas import CIRCLE, Canvas, jitter

_PAINTS = (
    (196, 36, 34), (30, 74, 168), (232, 232, 230), (38, 40, 46), (178, 182, 188),
    (222, 170, 30), (34, 116, 76), (112, 26, 52), (96, 150, 190), (230, 110, 40),
)  # fmt: skip
_GLASS = np.array((58, 74, 90))
_TYRE, _RIM = (26, 26, 28), (150, 152, 156)


@dataclass(frozen=True)
class Shape:
    """A vehicle seen from its right, in metres: x towards the front, y up.

    ``profile`` runs from the rear bumper over the roof to the front bumper; its segments in
    ``panes`` are glass. ``windows`` and ``wheels`` (x) lie on the sides. Above ``waist`` the body
    narrows to ``tuck`` of its width.
    """

    kind: str
    width: float
    profile: tuple[tuple[float, float], ...]
    panes: tuple[int, ...]
    windows: tuple[tuple[tuple[float, float], ...], ...]
    wheels: tuple[float, float]
    radius: float
    waist: float
    tuck: float

    @property
    def length(self) -> float:
        """Return the distance between the bumpers."""
        return self.profile[-1][0] - self.profile[0][0]


SALOON = Shape(
    'car', 1.8,
    ((-2.15, 0.28), (-2.2, 0.85), (-1.55, 0.95), (-1.0, 1.42), (0.3, 1.45), (1.0, 0.98),
     (2.05, 0.82), (2.15, 0.28)),
    (2, 4),
    (((-1.35, 0.97), (-0.92, 1.34), (-0.4, 1.36), (-0.4, 0.97)),
     ((-0.3, 0.97), (-0.3, 1.36), (0.27, 1.37), (0.8, 0.98))),
    (-1.35, 1.35), 0.33, 0.9, 0.8,
)  # fmt: skip
HATCHBACK = Shape(
    'car', 1.75,
    ((-1.8, 0.28), (-1.85, 0.9), (-1.55, 1.48), (0.35, 1.52), (1.1, 1.0), (1.85, 0.86),
     (1.95, 0.28)),
    (1, 3),
    (((-1.5, 1.0), (-1.32, 1.4), (-0.35, 1.43), (-0.35, 1.0)),
     ((-0.25, 1.0), (-0.25, 1.43), (0.32, 1.44), (0.9, 1.0))),
    (-1.2, 1.25), 0.32, 0.92, 0.82,
)  # fmt: skip
VAN = Shape(
    'car', 1.9,
    ((-2.1, 0.3), (-2.15, 1.0), (-2.0, 1.9), (0.9, 1.92), (1.6, 1.12), (2.2, 0.98), (2.3, 0.3)),
    (1, 3),
    (((-1.85, 1.1), (-1.78, 1.72), (-0.55, 1.74), (-0.55, 1.1)),
     ((-0.42, 1.1), (-0.42, 1.74), (0.85, 1.76), (1.38, 1.12))),
    (-1.35, 1.45), 0.35, 1.05, 0.86,
)  # fmt: skip
BUS = Shape(
    'bus', 2.5,
    ((-4.4, 0.35), (-4.45, 1.2), (-4.35, 2.75), (-4.2, 2.95), (4.2, 2.95), (4.4, 2.7),
     (4.45, 1.1), (4.45, 0.35)),
    (1, 5),
    tuple(
        ((x, 1.35), (x, 2.4), (x + 1.15, 2.4), (x + 1.15, 1.35)) for x in np.arange(-4.1, 3.6, 1.3)
    ),
    (-2.6, 2.9), 0.48, 1.2, 0.97,
)  # fmt: skip
CARS = (SALOON, HATCHBACK, VAN)


class Vehicle:
    """A vehicle at a place in the street, heading along +t or -t."""

    def __init__(
        self, rng: np.random.Generator, shape: Shape, place: tuple[float, float], heading: int
    ) -> None:
        self.shape, self.place, self.heading = shape, place, heading
        self.colour = jitter(rng, _PAINTS[rng.integers(len(_PAINTS))], 8)
        self.number = jitter(rng, (224, 220, 190), 10)

    def _street(self, points: NDArray, side: NDArray | float) -> NDArray:
        """Turn profile points (n, 2) at a side (-1 left to 1 right) into street points (n, 3)."""
        narrow = np.where(points[:, 1] > self.shape.waist, self.shape.tuck, 1.0)
        out = np.asarray(side) * narrow * self.shape.width / 2
        return np.stack(
            [
                self.place[0] + out * self.heading,
                points[:, 1],
                self.place[1] + points[:, 0] * self.heading,
            ],
            axis=1,
        )

    def corners(self) -> NDArray:
        """Return street points (n, 3) that enclose the vehicle."""
        profile = np.array(self.shape.profile)
        return np.concatenate([self._street(profile, -1), self._street(profile, 1)])

    def paint(self, canvas: Canvas, layer: int) -> None:
        """Paint far wheels, then the shell from its far to its near segments, then the side."""
        eye = canvas.camera.position
        side = 1 if (eye[0] - self.place[0]) * self.heading > 0 else -1
        front = 1 if (eye[1] - self.place[1]) * self.heading > 0 else -1
        self._wheels(canvas, layer, -side * 0.92, False)
        self._wheels(canvas, layer, side * 0.8, False)
        profile = np.array(self.shape.profile)
        segments = range(len(profile) - 1)
        for index in segments if front > 0 else reversed(segments):
            self._segment(canvas, layer, profile[index : index + 2], index)
        self._ends(canvas, layer, front)
        self._side(canvas, layer, side)

    def _segment(self, canvas: Canvas, layer: int, pair: NDArray, index: int) -> None:
        """Paint the strip of shell over one profile segment, if it faces the camera."""
        left, right = self._street(pair, -1.0), self._street(pair, 1.0)
        corners = np.array([left[0], left[1], right[1], right[0]])
        direction = pair[1] - pair[0]
        normal = np.array([0.0, direction[0], -direction[1] * self.heading])
        normal /= np.linalg.norm(normal)
        eye = [canvas.camera.position[0], canvas.camera.height, canvas.camera.position[1]]
        if (np.array(eye) - corners[0]) @ normal <= 0:
            return
        shade = canvas.light.shade(normal)
        canvas.face(corners, self.colour * shade, layer)
        if index in self.shape.panes:
            inner = corners.mean(0) + (corners - corners.mean(0)) * 0.86
            canvas.face(inner, _GLASS * shade + 24 * normal[1], layer)

    def _ends(self, canvas: Canvas, layer: int, front: int) -> None:
        """Paint lamps, number plate and bumper on the end that faces the camera."""
        profile = np.array(self.shape.profile)
        low, high = (profile[-1], profile[-2]) if front > 0 else (profile[0], profile[1])
        lamp = np.array((252, 244, 206) if front > 0 else (206, 22, 26))

        def panel(y0: float, y1: float, x0: float, x1: float, colour: NDArray) -> None:
            foot, head = low + (high - low) * y0, low + (high - low) * y1
            pair = np.array([foot, foot, head, head])
            pair[:, 0] += front * 0.02
            canvas.face(self._street(pair, np.array([x0, x1, x1, x0])), colour, layer)

        panel(0.0, 0.22, -1, 1, np.array((44, 44, 48)))
        if front > 0:
            panel(0.35, 0.62, -0.45, 0.45, np.array((34, 34, 38)))
        panel(0.52, 0.86, -0.95, -0.6, lamp)
        panel(0.52, 0.86, 0.6, 0.95, lamp)
        panel(0.18, 0.38, -0.28, 0.28, self.number)

    def _side(self, canvas: Canvas, layer: int, side: int) -> None:
        """Paint the side that faces the camera: body, sill, windows, door line, wheels."""
        shade = canvas.light.shade(np.array([side * self.heading, 0.0, 0.0]))
        profile = np.array(self.shape.profile)
        canvas.face(self._street(profile, side), self.colour * shade, layer)
        start, end, low = profile[0, 0], profile[-1, 0], profile[0, 1]
        sill = np.array([(start, low), (end, low), (end, low + 0.14), (start, low + 0.14)])
        canvas.face(self._street(sill, side), self.colour * shade * 0.55, layer)
        if self.shape.kind == 'bus':
            belt = np.array([(start, 0.95), (end, 0.95), (end, 1.15), (start, 1.15)])
            canvas.face(self._street(belt, side), np.array((238, 236, 228)) * shade, layer)
        for window in self.shape.windows:
            canvas.face(self._street(np.array(window), side), _GLASS * shade + 8, layer)
        handle = np.array([(-0.55, 0.82), (-0.3, 0.82), (-0.3, 0.86), (-0.55, 0.86)])
        canvas.face(self._street(handle, side), self.colour * 0.45, layer)
        self._wheels(canvas, layer, side * 1.01, True)

    def _wheels(self, canvas: Canvas, layer: int, side: float, rim: bool) -> None:
        """Paint both wheels of one side, with a rim where it can be seen."""
        circle = CIRCLE * self.shape.radius
        for x in self.shape.wheels:
            centre = np.array([x, self.shape.radius])
            canvas.face(self._street(circle + centre, side), _TYRE, layer)
            if rim:
                canvas.face(self._street(circle * 0.55 + centre, side), _RIM, layer)
