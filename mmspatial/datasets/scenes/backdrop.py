"""Sky, distant ridges and the ground: what fills the picture before anything stands in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

from mmspatial.datasets.scenes.canvas import Canvas, grain, jitter, phase
from mmspatial.datasets.scenes.world import Street

_PAINT = np.array((180, 180, 174))


def cloud_noise(rng: np.random.Generator, shape: tuple[int, int], cells: int) -> NDArray:
    """Return smooth noise (H, W) around 0 in five octaves, the coarsest ``cells`` wide."""
    height, width = shape
    total = np.zeros(shape, np.float32)
    for octave in range(5):
        count = cells << octave
        # Clouds lie flat: cells are twice as wide as high.
        grid = rng.standard_normal((2 * count * height // width + 3, count + 3), np.float32)
        total += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) * 0.58**octave
    return total


def paint_sky(canvas: Canvas, rng: np.random.Generator, zenith: NDArray, cover: float) -> None:
    """Fill the canvas with a gradient down to the haze, and clouds that cover a part of it."""
    height, width = canvas.ids.shape
    bottom = min(height, int(canvas.camera.horizon) + 1)
    # The sky is smooth: paint it at half the size.
    rows, columns = (bottom + 1) // 2, (width + 1) // 2
    haze, zenith = canvas.light.haze, zenith.astype(np.float32)
    sky = zenith + np.linspace(0, 1, rows, dtype=np.float32)[:, None, None] * (haze - zenith)
    clouds = cloud_noise(rng, (rows, columns), cells=int(rng.integers(3, 6)))
    veil = np.clip((clouds + (2.8 * cover - 1.6)) * 1.1, 0, 0.95)[..., None]
    # Thick parts are lit from above and grey below: compare with the same clouds a bit higher.
    relief = clouds - np.roll(clouds, -max(1, rows // 40), axis=0)
    white = 238 + np.clip(relief * 40, -40, 17)[..., None]
    sky = sky + (white - sky) * veil
    canvas.rgb[:bottom] = cv2.resize(sky, (width, bottom), interpolation=cv2.INTER_LINEAR)
    canvas.rgb[bottom:] = haze
    canvas.ids[:] = canvas.layer('sky')


def paint_ridge(
    canvas: Canvas,
    rng: np.random.Generator,
    kind: str,
    height: float,
    colour: NDArray,
    depth: float,
    cells: int,
) -> None:
    """Paint a far silhouette (hills, a tree line) up to ``height`` pixels above the horizon."""
    width = canvas.ids.shape[1]
    top = cloud_noise(rng, (2, width), cells)[0]
    top = (top - top.min()) / (np.ptp(top) + 1e-6) * 0.75 + 0.25
    horizon = canvas.camera.horizon
    steps = np.arange(width)
    outline = np.stack([steps, horizon - top * height], axis=1)
    layer = canvas.layer(kind)
    ends = [[width, horizon + 2], [0, horizon + 2]]
    near, far = (canvas.light.fade(colour, away) for away in (depth, depth * 2))
    for part in (1.0, 0.72, 0.42):  # bands that fade towards the foot, as valleys fill with haze
        band = outline.copy()
        band[:, 1] = horizon - top * height * part
        canvas.polygon(np.concatenate([band, ends]), near * part + far * (1 - part), layer)


def paint_skyline(canvas: Canvas, rng: np.random.Generator, height: float) -> None:
    """Paint far blocks of flats along the horizon, up to ``height`` pixels high."""
    width, horizon = canvas.ids.shape[1], canvas.camera.horizon
    layer = canvas.layer('building')
    left = -rng.uniform(0, 0.1) * width
    while left < width:
        block = rng.uniform(0.04, 0.13) * width
        top = horizon - height * rng.uniform(0.35, 1.0)
        colour = canvas.light.fade(jitter(rng, (128, 122, 126), 22), rng.uniform(70, 150))
        right = left + block
        canvas.polygon(
            [(left, top), (right, top), (right, horizon + 2), (left, horizon + 2)], colour, layer
        )
        pitch = max(4.0, height / 9)
        for y in np.arange(top + pitch / 2, horizon - pitch, pitch):
            for x in np.arange(left + pitch / 2, right - pitch / 2, pitch):
                pane = [(x, y), (x + pitch / 2, y), (x + pitch / 2, y + pitch / 2)]
                canvas.polygon([*pane, (x, y + pitch / 2)], colour - 20, layer)
        left = right + (rng.uniform(0, 0.05) * width if rng.random() < 0.3 else 0)


def paint_ground(canvas: Canvas, rng: np.random.Generator, street: Street) -> None:
    """Paint road with markings, sidewalks with slabs, and grass, by each pixel's street place."""
    height, width = canvas.ids.shape
    top = int(canvas.camera.horizon) + 1
    if top >= height:
        return
    rows, columns = np.ogrid[top:height, :width]
    s, t, depth = canvas.camera.ground(
        rows.astype(np.float32) + 0.5, columns.astype(np.float32) + 0.5
    )
    depth = np.broadcast_to(depth, s.shape)
    across = np.abs(s)
    road, grass = across < street.road, across > street.edge
    surfaces = (
        ('road', road, _asphalt(rng, street)),
        ('sidewalk', ~(road | grass), _paving(rng, street)),
        ('grass', grass, _lawn(rng)),
    )
    coarse_tile = _coarse_grain()
    for kind, mask, surface in surfaces:
        here = np.nonzero(mask)
        if not len(here[0]):
            continue
        place, far = (s[here], t[here]), depth[here]
        coarse = _lookup(coarse_tile, place, 9)
        coarse *= np.clip(1.3 - far * (1 / 25), 0.15, 1)
        colours = surface(*place, far, coarse, _lookup(grain(), place, 36))
        canvas.rgb[top:][here] = canvas.light.fade_all(colours, np.minimum(far * 0.5, 60))
        canvas.ids[top:][here] = canvas.layer(kind)


@cache
def _coarse_grain() -> NDArray:
    """Return smooth noise (256, 256) that repeats without a seam."""
    wrapped = cv2.GaussianBlur(np.pad(grain(), 16, 'wrap'), (0, 0), 3)
    smooth = wrapped[16:-16, 16:-16]
    return smooth / smooth.std()


def _lookup(tile: NDArray, place: tuple[NDArray, NDArray], scale: float) -> NDArray:
    """Read a noise tile at street places, so that the grain foreshortens with the ground."""
    s, t = ((x * scale).astype(np.int32) & 255 for x in place)
    return tile[s, t]


Surface = Callable[[NDArray, NDArray, NDArray, NDArray, NDArray], NDArray]


def _asphalt(rng: np.random.Generator, street: Street) -> Surface:
    """Return the road's colours (n, 3) as a function of s, t, depth, coarse and fine grain."""
    dash = float(rng.choice([3.0, 4.5]))
    dark = jitter(rng, (88, 88, 93), 9)
    palette = np.stack([dark, dark - 14, dark * 0.2 + rng.uniform(0.8, 1) * _PAINT])
    palette = palette.astype(np.float32)

    def surface(s: NDArray, t: NDArray, depth: NDArray, coarse: NDArray, fine: NDArray) -> NDArray:
        across, off = np.abs(s), np.abs(t - street.crossing)
        index = (across > street.road - 0.22).astype(np.uint8)
        lines = (across < 0.09) & (phase(t, 2 * dash) < 0.5)
        lines |= np.abs(across - (street.road - 0.45)) < 0.07
        zebra = (off < 1.5) & (across < street.road - 0.3) & (phase(s, 1.0) < 0.5)
        index[(lines & (off > 2.2)) | zebra] = 2
        return palette[index] + (6 * fine + 5 * coarse)[:, None]

    return surface


def _paving(rng: np.random.Generator, street: Street) -> Surface:
    """Return the sidewalk's colours: slabs with joints, and a light kerb."""
    slab = float(rng.choice([0.6, 0.8, 1.2]))
    stone = jitter(rng, (176, 164, 146), 10).astype(np.float32)

    def surface(s: NDArray, t: NDArray, depth: NDArray, coarse: NDArray, fine: NDArray) -> NDArray:
        kerb = np.abs(s) < street.road + 0.16
        joint = (phase(s, slab) < 0.035 / slab) | (phase(t, slab) < 0.035 / slab)
        # Fine lines dissolve before they alias.
        tone = 5 * (fine + coarse) - joint * 30 * np.clip(1.2 - depth / 16, 0, 1)
        tone[kerb] = 26 + 5 * fine[kerb]
        return stone + tone[:, None]

    return surface


def _lawn(rng: np.random.Generator) -> Surface:
    """Return the grass's colours: a mixture of two greens, patch by patch."""
    lush, dry = jitter(rng, (98, 140, 52), 10), jitter(rng, (138, 146, 68), 8)
    lush, dry = lush.astype(np.float32), dry.astype(np.float32)

    def surface(s: NDArray, t: NDArray, depth: NDArray, coarse: NDArray, fine: NDArray) -> NDArray:
        patch = np.clip(coarse * 0.5 + 0.4, 0, 1)[:, None]
        return lush + (dry - lush) * patch + (17 * fine + 5 * coarse)[:, None]

    return surface
