"""Buildings and fences: flat faces with a texture that is a function of metres."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mmspatial.datasets.scenes.canvas import Canvas, Colour, grain, jitter, phase

_WALLS = (
    (172, 92, 72), (196, 168, 128), (206, 190, 166), (150, 118, 100), (188, 132, 92),
    (164, 158, 160), (214, 206, 196), (140, 84, 76), (176, 146, 134), (200, 150, 130),
)  # fmt: skip
_ROOFS = ((126, 66, 52), (92, 78, 74), (150, 88, 62), (82, 82, 92))


@dataclass(frozen=True)
class Facade:
    """The texture of a wall: plaster or bricks, storeys of windows, a cornice at ``top``.

    ``palette`` holds the colours of wall, window frame, glass, cornice and base; lengths are
    metres.
    """

    palette: NDArray
    storey: float
    pitch: float
    pane: tuple[float, float]
    top: float
    bricks: bool
    salt: tuple[int, int]
    shade: float = 1.0

    def __call__(self, a: NDArray, b: NDArray) -> NDArray:
        """Return the colours (n, 3) of wall points a metres along and b metres up."""
        noise = np.roll(grain(), self.salt, (0, 1))
        tone = noise[(a * 23).astype(np.int32) & 255, (b * 23).astype(np.int32) & 255] * 5
        if self.bricks:
            odd = (np.floor(b * 4).astype(np.int32) & 1) * np.float32(0.3)
            tone += 14 * ((phase(b, 0.25) < 0.2) | (phase(a + odd, 0.6) < 0.08))
        column, level = np.floor(a * (1 / self.pitch)), np.floor(b * (1 / self.storey))
        x = np.abs(a - (column + 0.5) * self.pitch) * (2 / self.pane[0])
        up = b - level * self.storey
        y = np.abs(up - 0.52 * self.storey) * (2 / self.pane[1])
        fits = (level + 1) * self.storey <= self.top + 0.1
        index = np.zeros(len(a), np.uint8)
        index[fits & (x < 1.18) & (y < 1.14)] = 1
        pane = np.nonzero(fits & (x < 1) & (y < 1) & (x > 0.07))[0]
        # Each window has its own look: bright sky in it, a drawn blind, or a dark room.
        look = noise[column[pane].astype(np.int32) & 255, level[pane].astype(np.int32) & 255]
        blind = (look > 1.1) & (up[pane] > 0.5 * self.storey)
        index[pane] = np.where(blind, 3, 2)
        tone[pane] = np.where(blind, 0, look * 16 + (1 - y[pane]) * 14)
        index[b > self.top - 0.35] = 3
        index[b < 0.5] = 4
        return (self.palette[index] + tone[:, None]) * np.float32(self.shade)


def paint_building(
    canvas: Canvas,
    rng: np.random.Generator,
    base: tuple[float, float, float, float],
    height: float,
    pitched: bool,
) -> None:
    """Paint a house on the ground rectangle ``base`` (s0, t0, s1, t1)."""
    s0, t0, s1, t1 = base
    layer = canvas.layer('building')
    wall = jitter(rng, _WALLS[rng.integers(len(_WALLS))], 10)
    storey = rng.uniform(2.7, 3.4)
    trim = jitter(rng, (226, 220, 208) if wall.sum() < 480 else (110, 92, 84), 8)
    glass = jitter(rng, (62, 78, 98), 12)
    facade = Facade(
        palette=np.stack([wall, trim, glass, trim * 0.93, wall * 0.8]).astype(np.float32),
        storey=storey,
        pitch=rng.uniform(1.9, 3.2),
        pane=(rng.uniform(0.9, 1.5), storey * rng.uniform(0.42, 0.6)),
        top=height,
        bricks=bool(rng.random() < 0.5),
        salt=(int(rng.integers(256)), int(rng.integers(256))),
    )
    ridge = height + (rng.uniform(0.28, 0.42) * (s1 - s0) if pitched else 0)
    middle = (s0 + s1) / 2
    gable = [(0, 0), (s1 - s0, 0), (s1 - s0, height), ((s1 - s0) / 2, ridge), (0, height)]
    long = [(0, 0), (t1 - t0, 0), (t1 - t0, height), (0, height)]
    roof = jitter(rng, _ROOFS[rng.integers(len(_ROOFS))], 8)
    faces = (
        ((s0, 0, t0), (0, 0, 1), long, (-1, 0, 0)),
        ((s1, 0, t0), (0, 0, 1), long, (1, 0, 0)),
        ((s0, 0, t0), (1, 0, 0), gable, (0, 0, -1)),
        ((s0, 0, t1), (1, 0, 0), gable, (0, 0, 1)),
    )
    eye = np.array([canvas.camera.position[0], canvas.camera.height, canvas.camera.position[1]])
    for origin, right, outline, normal in faces:
        if (eye - origin) @ np.array(normal) > 0.05:
            shader = replace(facade, shade=canvas.light.shade(normal))
            canvas.textured(origin, right, (0, 1, 0), outline, shader, layer)
    if pitched:
        for side, corner in ((-1, s0), (1, s1)):
            _paint_roof(canvas, (corner, height, t0, t1), (middle, ridge), side, roof, layer)


def _paint_roof(
    canvas: Canvas,
    eaves: tuple[float, float, float, float],
    ridge: tuple[float, float],
    side: int,
    colour: Colour,
    layer: int,
) -> None:
    """Paint one slope of a pitched roof with rows of tiles, if the camera can see it."""
    s, y, t0, t1 = eaves
    slope = np.array([ridge[0] - s, ridge[1] - y, 0.0])
    length = float(np.linalg.norm(slope))
    normal = np.array([side * slope[1], abs(slope[0]), 0.0]) / length
    eye = np.array([canvas.camera.position[0], canvas.camera.height, canvas.camera.position[1]])
    if (eye - [s, y, t0]) @ normal <= 0.05:
        return
    shade = canvas.light.shade(normal)

    def tiles(a: NDArray, b: NDArray) -> NDArray:
        rows = np.float32(5) * (phase(a + b, 0.9) < 0.5) - np.float32(22) * (phase(b, 0.45) < 0.22)
        return (np.float32(colour) + rows[:, None]) * np.float32(shade)

    outline = [(-0.3, -0.2), (t1 - t0 + 0.3, -0.2), (t1 - t0 + 0.3, length), (-0.3, length)]
    canvas.textured((s, y, t0), (0, 0, 1), slope / length, outline, tiles, layer)


def paint_fence(
    canvas: Canvas, rng: np.random.Generator, s: float, span: tuple[float, float], height: float
) -> None:
    """Paint a board fence along the street at ``s`` from t = span[0] to span[1]."""
    palette = ((236, 232, 222), (150, 104, 60), (120, 84, 56))
    colour = jitter(rng, palette[rng.integers(len(palette))], 8)
    normal = (float(np.sign(canvas.camera.position[0] - s)), 0.0, 0.0)
    shade = canvas.light.shade(normal)

    def boards(a: NDArray, b: NDArray) -> NDArray:
        rail = (np.abs(b - height * 0.25) < 0.06) | (np.abs(b - height * 0.75) < 0.06)
        tone = np.where(rail, -22, np.float32(-70) * (phase(a, 0.28) < 0.25))
        tone += 9 * np.sin(np.floor(a * (1 / 0.28)) * 2.4)
        return (np.float32(colour) + tone[:, None]) * np.float32(shade)

    length = span[1] - span[0]
    outline = [(0, 0), (length, 0), (length, height), (0, height)]
    canvas.textured((s, 0, span[0]), (0, 0, 1), (0, 1, 0), outline, boards, canvas.layer('fence'))
