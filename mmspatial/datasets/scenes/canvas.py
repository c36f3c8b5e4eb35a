"""A pinhole camera and a painter: every stroke goes to the picture and to a map of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

Colour = ArrayLike
Shader = Callable[[NDArray, NDArray], NDArray]

_NEAR = 0.3  # metres; what is closer to the camera is clipped away
_SHIFT = 4  # fractional bits of OpenCV's drawing coordinates
_ANGLES = np.linspace(0, 2 * np.pi, 20, endpoint=False)
CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)


@dataclass(frozen=True)
class Camera:
    """Look along a street whose axes are s (across), y (up) and t (along), in metres.

    ``yaw`` turns from +t towards +s. ``position`` is (s, t); ``focal``, ``centre`` and
    ``horizon`` are pixels.
    """

    yaw: float
    position: tuple[float, float]
    height: float
    focal: float
    centre: float
    horizon: float

    def view(self, points: ArrayLike) -> NDArray:
        """Turn street points (n, 3) into camera axes: right, up, forward."""
        s, y, t = (np.asarray(points, float) - [self.position[0], self.height, self.position[1]]).T
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        return np.stack([s * cos - t * sin, y, s * sin + t * cos], axis=1)

    def pixels(self, view: NDArray) -> NDArray:
        """Project camera points (n, 3) with positive depth to pixels (n, 2)."""
        scale = self.focal / view[:, 2:]
        return [self.centre, self.horizon] + view[:, :2] * scale * [1, -1]

    def ground(self, rows: NDArray, columns: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """Return s, t and depth of the ground seen in pixels below the horizon."""
        depth = self.focal * self.height / (rows - self.horizon)
        return *self.street((columns - self.centre) / self.focal * depth, depth), depth

    def street(self, right: NDArray, ahead: NDArray) -> tuple[NDArray, NDArray]:
        """Turn distances to the camera's right and ahead of it into s and t."""
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        s = right * cos + ahead * sin + self.position[0]
        return s, ahead * cos - right * sin + self.position[1]


@dataclass(frozen=True)
class Light:
    """Say where the sun is (unit vector in street axes) and how far one can see."""

    sun: NDArray
    haze: NDArray
    sight: float
    shadow: float

    def shade(self, normal: NDArray) -> float:
        """Return the brightness of a surface with this unit normal."""
        return 0.72 + 0.38 * float(np.dot(normal, self.sun))

    def fade(self, colour: Colour, depth: float) -> NDArray:
        """Blend one colour into the haze, as air does over a distance in metres."""
        clear = math.exp(-depth / self.sight)
        return np.asarray(colour) * clear + self.haze * (1 - clear)

    def fade_all(self, colours: NDArray, depth: NDArray) -> NDArray:
        """Blend colours (n, 3) into the haze at depths (n,), in place; return them as bytes."""
        clear = np.exp(depth * (-1 / self.sight))[:, None]
        colours -= self.haze
        colours *= clear
        colours += self.haze
        return np.clip(colours, 0, 255, out=colours).astype(np.uint8)


@dataclass
class Canvas:
    """Hold the picture (H, W, 3) and the layer map (H, W), which share every stroke.

    A later layer covers an earlier one in both, so the map is exactly what one sees.
    ``layers[i]`` is the kind of layer i, with a flag for crowds.
    """

    rgb: NDArray
    ids: NDArray
    camera: Camera
    light: Light
    layers: list[tuple[str, bool]] = field(default_factory=list)

    def layer(self, kind: str, crowd: bool = False) -> int:
        """Begin a new thing on top of all others; return its number."""
        self.layers.append((kind, crowd))
        return len(self.layers) - 1

    def polygon(self, points: ArrayLike, colour: Colour, layer: int) -> None:
        """Fill a polygon of pixels (n, 2)."""
        corners = [_fixed(np.asarray(points))]
        tone = np.asarray(colour).tolist()
        cv2.fillPoly(self.rgb, corners, tone, shift=_SHIFT)
        cv2.fillPoly(self.ids, corners, layer, shift=_SHIFT)

    def face(self, corners: ArrayLike, colour: Colour, layer: int) -> None:
        """Paint a flat polygon of street points (n, 3) in one colour, faded by its depth."""
        view = _clip(self.camera.view(corners))
        if len(view) >= 3:
            depth = float(view[:, 2].mean())
            self.polygon(self.camera.pixels(view), self.light.fade(colour, depth), layer)

    def shadow(self, place: tuple[float, float], along_s: float, along_t: float) -> None:
        """Darken an ellipse of ground at (s, t), off the sun's side; layers stay as they are."""
        shift = -0.4 * self.light.sun
        ring = CIRCLE * [along_s, along_t] + [along_s * shift[0], along_t * shift[2]] + place
        view = self.camera.view(np.insert(ring, 1, 0, axis=1))
        if view[:, 2].min() < _NEAR:
            return
        pixels = self.camera.pixels(view)
        (left, top), (end, bottom) = self._frame(pixels)
        mask = np.zeros((bottom - top, end - left), np.uint8)
        if mask.size:
            cv2.fillPoly(mask, [_fixed(pixels - [left, top])], 1, shift=_SHIFT)
            patch = self.rgb[top:bottom, left:end]
            patch[mask > 0] = patch[mask > 0] * np.float32(self.light.shadow)

    def _frame(self, pixels: NDArray) -> list[list[int]]:
        """Return the part of the picture that encloses pixels: [left, top], [end, bottom]."""
        height, width = self.ids.shape
        ends = np.stack([np.floor(pixels.min(0)), np.ceil(pixels.max(0)) + 1])
        return np.clip(ends, 0, [width, height]).astype(int).tolist()

    def textured(
        self,
        origin: ArrayLike,
        right: ArrayLike,
        up: ArrayLike,
        outline: ArrayLike,
        shader: Shader,
        layer: int,
    ) -> None:
        """Paint a flat outline (n, 2) given in metres along unit vectors from an origin.

        ``shader`` maps the two coordinates of every visible pixel (n,) to colours (n, 3).
        """
        outline = np.asarray(outline, float)
        basis = np.stack([right, up]).astype(float)
        view = _clip(self.camera.view(np.asarray(origin, float) + outline @ basis))
        if len(view) < 3:
            return
        pixels = self.camera.pixels(view)
        (left, top), (end, bottom) = self._frame(pixels)
        mask = np.zeros((bottom - top, end - left), np.uint8)
        if not mask.size:
            return
        cv2.fillPoly(mask, [_fixed(pixels - [left, top])], 1, shift=_SHIFT)
        axes = self.camera.view(np.asarray(origin, float) + basis)
        start = self.camera.view([origin])[0]
        plane = np.stack([*(axes - start), start], axis=1)
        if abs(np.linalg.det(plane)) < 1e-6:  # seen edge-on
            return
        rows, columns = np.nonzero(mask)
        # A ray (x, y, 1) meets the plane o + a r + b u where (a, b, 1) ~ [r u o]^-1 (x, y, 1).
        x = (columns.astype(np.float32) + (left - self.camera.centre)) / self.camera.focal
        y = ((self.camera.horizon - top) - rows.astype(np.float32)) / self.camera.focal
        a, b, w = (r * x + u * y + o for r, u, o in np.linalg.inv(plane).tolist())
        # Rounding may put a pixel of the outline just beyond the plane's horizon.
        depth = 1 / np.maximum(w, 1e-4)
        colours = self.light.fade_all(shader(a * depth, b * depth), depth)
        self.rgb[top:bottom, left:end][rows, columns] = colours
        self.ids[top:bottom, left:end][rows, columns] = layer


def jitter(rng: np.random.Generator, colour: Colour, amount: float = 12.0) -> NDArray:
    """Vary a colour: its brightness by ``amount``, each channel by a third of that."""
    return np.asarray(colour, float) + rng.normal(0, amount) + rng.normal(0, amount / 3, 3)


@cache
def grain() -> NDArray:
    """Return a tile (256, 256) of white noise that every texture reads at its own offset."""
    return np.random.default_rng(0).standard_normal((256, 256), np.float32)


def phase(x: NDArray, period: float) -> NDArray:
    """Return where x lies within its period, in [0, 1)."""
    turns = x * (1 / period)
    return turns - np.floor(turns)


def _fixed(pixels: NDArray) -> NDArray:
    """Turn pixels into OpenCV's fixed-point coordinates."""
    return np.round(pixels * (1 << _SHIFT)).astype(np.int32)


def _clip(view: NDArray) -> NDArray:
    """Cut away the part of a polygon (n, 3) that is nearer than the near plane."""
    inside = view[:, 2] >= _NEAR
    if inside.all():
        return view
    kept = []
    for here, there in zip(view, np.roll(view, -1, axis=0), strict=True):
        if here[2] >= _NEAR:
            kept.append(here)
        if (here[2] >= _NEAR) != (there[2] >= _NEAR):
            part = (_NEAR - here[2]) / (there[2] - here[2])
            kept.append(here + part * (there - here))
    return np.array(kept).reshape(-1, 3)
