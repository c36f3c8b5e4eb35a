"""Keep account of what stands where in a street, and paint it far to near."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmspatial.datasets.scenes.canvas import Canvas
from mmspatial.datasets.scenes.sprite import Sprite
from mmspatial.datasets.scenes.vehicles import Shape, Vehicle
from mmspatial.datasets.scenes.world import Street

Band = tuple[float, float]

_SHADOW = 1e4  # shadows lie on the ground: painted before all that stands, however far


@dataclass(frozen=True)
class Prop:
    """An upright thing: how to draw it, its size in metres, how far off it may be.

    ``draw`` takes a board, a generator and the height; ``low`` is the visible part's lower
    end. ``smallest`` bounds the shorter side in the picture, as a part of the picture's side.
    """

    kind: str
    draw: Callable[[Sprite, np.random.Generator, float], None]
    half_width: float
    low: float
    height: Band
    depth: Band
    smallest: float
    crowd: bool = False


@dataclass
class Stage:
    """Admit things that are large enough and do not hide each other, then paint them.

    ``fences`` holds the sides (-1, 1) whose lawn lies behind a fence.
    """

    canvas: Canvas
    street: Street
    fences: tuple[int, ...]
    boxes: list[NDArray] = field(default_factory=list)
    queue: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    @property
    def sunward(self) -> int:
        """Return 1 if the sun is on the camera's right, else -1."""
        sun, yaw = self.canvas.light.sun, self.canvas.camera.yaw
        return 1 if sun[0] * math.cos(yaw) > sun[2] * math.sin(yaw) else -1

    def depth(self, place: tuple[float, float]) -> float:
        """Return how far ahead of the camera (s, t) is."""
        return float(self.canvas.camera.view([(place[0], 0.0, place[1])])[0, 2])

    def add(self, depth: float, paint: Callable[[], None]) -> None:
        """Queue something to paint at a depth."""
        self.queue.append((depth, paint))

    def cast_shadow(self, place: tuple[float, float], across: float, along: float) -> None:
        """Queue a shadow on the ground at (s, t)."""
        self.add(_SHADOW + self.depth(place), lambda: self.canvas.shadow(place, across, along))

    def paint(self) -> None:
        """Paint all shadows, then all things, far to near."""
        for _, paint in sorted(self.queue, key=lambda item: -item[0]):
            paint()

    def free(self, box: NDArray, overlap: float) -> bool:
        """Reserve a box (4,) unless it shares more than a part ``overlap`` with another."""
        for other in self.boxes:
            both = np.concatenate([np.maximum(box, other)[:2], np.minimum(box, other)[2:]])
            if _area(both) > overlap * min(_area(box), _area(other)):
                return False
        self.boxes.append(box)
        return True

    def place_prop(self, rng: np.random.Generator, prop: Prop, bands: tuple[Band, ...]) -> None:
        """Queue a prop at the first free place whose s lies in one of the bands, if any."""
        cos, sin = math.cos(self.canvas.camera.yaw), math.sin(self.canvas.camera.yaw)
        height = rng.uniform(*prop.height)
        mirror = int(rng.choice([-1, 1]))
        for s, t in self._spots(rng, prop.depth, bands):
            ends = [(s + e * cos, t - e * sin) for e in (-prop.half_width, prop.half_width)]
            corners = [(a, y, b) for a, b in ends for y in (prop.low, height)]
            if self._admit(corners, prop.smallest, overlap=0.25):
                self._queue_prop(rng, prop, (s, t), height, mirror)
                return

    def _queue_prop(
        self,
        rng: np.random.Generator,
        prop: Prop,
        place: tuple[float, float],
        height: float,
        mirror: int,
    ) -> None:
        def paint() -> None:
            if prop.low > 0:
                post = Sprite.stand(self.canvas, place, self.canvas.layer('post'), mirror)
                post.stroke([(0, 0), (0, (prop.low + height) / 2)], 0.12, (96, 98, 100))
            layer = self.canvas.layer(prop.kind, prop.crowd)
            prop.draw(Sprite.stand(self.canvas, place, layer, mirror), rng, height)

        width = 0.25 if prop.low > 0 else prop.half_width
        self.cast_shadow(place, width, width)
        self.add(self.depth(place), paint)

    def place_vehicle(
        self, rng: np.random.Generator, shapes: tuple[Shape, ...], lanes: tuple[float, ...]
    ) -> None:
        """Queue a vehicle in one of the lanes (s), keeping right, if there is room."""
        shape = shapes[rng.integers(len(shapes))]
        for _ in range(10):
            place = float(rng.choice(lanes)), rng.uniform(-12, 34)
            vehicle = Vehicle(rng, shape, place, 1 if place[0] > 0 else -1)
            if self.depth(place) > 4.5 and self._admit(vehicle.corners(), 0.1, overlap=0.35):
                self._queue_vehicle(vehicle)
                return

    def _queue_vehicle(self, vehicle: Vehicle) -> None:
        shape = vehicle.shape
        self.cast_shadow(vehicle.place, shape.width * 0.62, shape.length * 0.55)
        self.add(
            self.depth(vehicle.place),
            lambda: vehicle.paint(self.canvas, self.canvas.layer(shape.kind)),
        )

    def _spots(
        self, rng: np.random.Generator, depth: Band, bands: tuple[Band, ...]
    ) -> list[tuple[float, float]]:
        """Return random places before the camera, with s in one of the bands."""
        camera, width = self.canvas.camera, self.canvas.ids.shape[1]
        ahead = rng.uniform(*depth, 60)
        right = (rng.uniform(0.04, 0.96, 60) * width - camera.centre) / camera.focal * ahead
        s, t = camera.street(right, ahead)
        fits = np.any([(s > low) & (s < high) for low, high in bands], axis=0)
        return list(zip(s[fits].tolist(), t[fits].tolist(), strict=True))[:12]

    def _admit(self, corners: ArrayLike, smallest: float, overlap: float) -> bool:
        """Reserve the picture's part around street points (n, 3) if it is seen and free."""
        view = self.canvas.camera.view(corners)
        if view[:, 2].min() < 2:
            return False
        pixels = self.canvas.camera.pixels(view)
        height, width = self.canvas.ids.shape
        box = np.concatenate([pixels.min(0), pixels.max(0)])
        seen = np.clip(box, 0, [width, height, width, height])
        if (box[2:] - box[:2]).min() < smallest * (height * width) ** 0.5:
            return False
        return _area(seen) > 0.6 * _area(box) and self.free(box, overlap)


def _area(box: NDArray) -> float:
    return float(max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1]))
