"""Upright boards: people, dogs, trees, street furniture, kites; all in metres from the foot."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np

from mmspatial.datasets.scenes.canvas import CIRCLE, Colour, jitter
from mmspatial.datasets.scenes.sprite import Sprite

_SKINS = ((236, 190, 160), (198, 142, 106), (146, 96, 66), (104, 68, 48))
_HAIR = ((40, 30, 26), (96, 62, 34), (196, 158, 92), (150, 148, 146), (120, 52, 30))
_SHIRTS = (
    (206, 44, 60), (48, 88, 190), (240, 200, 60), (236, 236, 236), (120, 60, 150),
    (240, 130, 50), (40, 150, 150), (230, 120, 160), (50, 50, 60), (60, 160, 80),
)  # fmt: skip
_TROUSERS = ((44, 52, 84), (40, 40, 44), (110, 92, 70), (90, 96, 104), (60, 74, 60))

# Eight ragged outlines (8, 20, 2) of radius about 1, wider than high.
_TUFTS = CIRCLE * np.random.default_rng(1).uniform(0.72, 1.2, (8, 20, 1)) * [1, 0.8]


def draw_person(sprite: Sprite, rng: np.random.Generator, height: float) -> None:
    """Draw a standing or walking person of this height."""
    k = height / 1.75
    skin, hair = jitter(rng, _pick(rng, _SKINS), 6), jitter(rng, _pick(rng, _HAIR), 6)
    shirt, trousers = jitter(rng, _pick(rng, _SHIRTS), 10), jitter(rng, _pick(rng, _TROUSERS), 8)
    stride, swing = rng.uniform(0.05, 0.3) * k, rng.uniform(0.02, 0.28) * k
    girth = rng.uniform(0.9, 1.2) * k
    hip, chest = 0.86 * k, 1.38 * k
    skirt = rng.random() < 0.25
    for sign, tone in ((-1, 0.8), (1, 1.0)):
        foot = (sign * (0.09 * k + stride / 2), 0.05 * k)
        knee = (sign * (0.09 * k + stride / 3) + 0.03 * k, 0.46 * k)
        leg = skin if skirt else trousers
        sprite.stroke([(sign * 0.07 * k, hip), knee, foot], 0.15 * girth, leg * tone)
        sprite.polygon(
            [(foot[0] - 0.07 * k, 0), (foot[0] + 0.16 * k, 0), (foot[0] + 0.1 * k, 0.09 * k),
             (foot[0] - 0.07 * k, 0.1 * k)],
            np.array((52, 40, 36)) * tone,
        )  # fmt: skip
    if skirt:
        flare = (0.25 * girth, 0.5 * k)
        sprite.polygon(
            [(-0.15 * girth, hip + 0.1 * k), (0.15 * girth, hip + 0.1 * k), flare,
             (-flare[0], flare[1])],
            trousers * 1.1 + 10,
        )  # fmt: skip
    if rng.random() < 0.35:
        sprite.disc(0, 1.5 * k, 0.14 * k, hair * 0.85, squash=1.5)  # long hair, behind the neck
    arm = [(-0.2 * girth, chest - 0.04 * k), (-0.25 * girth - swing / 2, 1.1 * k)]
    sprite.stroke([*arm, (-0.22 * girth - swing, 0.84 * k)], 0.11 * k, shirt * 0.72)
    sprite.disc(-0.22 * girth - swing, 0.82 * k, 0.055 * k, skin * 0.85)
    half = [(0.15, hip - 0.06 * k), (0.2, 1.2 * k), (0.22, chest), (0.1, chest + 0.07 * k)]
    torso = half + [(-x, y) for x, y in reversed(half)]
    sprite.polygon([(x * girth, y) for x, y in torso], shirt)
    sprite.polygon([(x * girth, y) for x, y in torso[4:]], shirt * 0.84)
    sprite.polygon(
        [(-0.06 * k, chest), (0.06 * k, chest), (0.05 * k, 1.54 * k), (-0.05 * k, 1.54 * k)],
        skin * 0.85,
    )
    arm = [(0.2 * girth, chest - 0.04 * k), (0.25 * girth + swing / 3, 1.1 * k)]
    sprite.stroke([*arm, (0.22 * girth + swing, 0.86 * k)], 0.11 * k, shirt * 0.9)
    sprite.disc(0.22 * girth + swing, 0.84 * k, 0.055 * k, skin)
    _draw_head(sprite, rng, k, skin, hair)


def _draw_head(
    sprite: Sprite, rng: np.random.Generator, k: float, skin: Colour, hair: Colour
) -> None:
    """Draw a face with short hair, or the back of a head; ``k`` scales a 1.75 m person."""
    sprite.disc(0, 1.62 * k, 0.105 * k, skin, squash=1.25)
    if rng.random() < 0.35:
        sprite.disc(0, 1.645 * k, 0.12 * k, hair, squash=1.15)
        return
    for x in (-0.035, 0.05):
        sprite.disc(x * k, 1.62 * k, 0.014 * k, (40, 30, 28))
    angles = np.linspace(0.1, np.pi + 0.25, 12)
    cap = np.stack([np.cos(angles) * 0.12, 1.64 + np.sin(angles) * 0.135], axis=1)
    sprite.polygon(cap * k, hair)


def draw_crowd(sprite: Sprite, rng: np.random.Generator, height: float) -> None:
    """Draw a dense group of people as one thing."""
    for x in rng.permutation(np.linspace(-1.5, 1.5, rng.integers(8, 13))):
        step = np.array((x * sprite.scale, rng.uniform(-0.05, 0.05) * sprite.scale))
        member = replace(sprite, foot=tuple(sprite.foot + step))
        draw_person(member, rng, height * rng.uniform(0.8, 1.0))


def draw_dog(sprite: Sprite, rng: np.random.Generator, height: float) -> None:
    """Draw a dog seen from its side, ``height`` at the head."""
    k = height / 0.8
    coats = ((150, 96, 48), (60, 44, 36), (214, 178, 124), (232, 224, 210), (110, 70, 44))
    coat = jitter(rng, _pick(rng, coats), 8)
    step = rng.uniform(0.02, 0.12) * k
    for x, sign, tone in ((-0.32, 1, 0.7), (0.26, -1, 0.7), (-0.36, -1, 0.95), (0.3, 1, 0.95)):
        top = (x * k, 0.42 * k)
        sprite.stroke([top, (x * k + sign * step, 0.2 * k), (x * k + sign * step, 0.03 * k)],
                      0.1 * k, coat * tone)  # fmt: skip
    sprite.stroke(
        [(-0.42 * k, 0.5 * k), (-0.58 * k, 0.6 * k), (-0.62 * k, 0.78 * k)], 0.07 * k, coat
    )
    sprite.disc(-0.05 * k, 0.46 * k, 0.44 * k, coat, squash=0.4)
    sprite.disc(-0.02 * k, 0.4 * k, 0.34 * k, coat * 0.85 + 6, squash=0.3)
    sprite.stroke([(0.28 * k, 0.5 * k), (0.46 * k, 0.68 * k)], 0.2 * k, coat)
    sprite.disc(0.52 * k, 0.7 * k, 0.15 * k, coat * 1.05, squash=0.9)
    sprite.disc(0.66 * k, 0.65 * k, 0.1 * k, coat * 0.9, squash=0.65)
    sprite.disc(0.74 * k, 0.67 * k, 0.03 * k, (20, 18, 18))
    sprite.disc(0.45 * k, 0.7 * k, 0.07 * k, coat * 0.6, squash=1.7, tilt=-0.3)
    sprite.disc(0.56 * k, 0.74 * k, 0.022 * k, (16, 14, 14))


def draw_tree(sprite: Sprite, rng: np.random.Generator, height: float) -> None:
    """Draw a broad-leaved tree, a poplar or a conifer out of many tufts of foliage."""
    form = rng.choice(['round', 'poplar', 'conifer'], p=[0.6, 0.15, 0.25])
    greens = ((52, 92, 34), (70, 108, 40), (40, 78, 40), (96, 112, 36), (150, 104, 34))
    leaf = jitter(rng, greens[rng.choice(5, p=[0.32, 0.28, 0.2, 0.14, 0.06])], 8)
    bark = jitter(rng, (88, 66, 48), 8)
    trunk = height * (0.14 if form == 'conifer' else 0.42)
    thick = height * 0.035
    sprite.polygon([(-thick, 0), (thick, 0), (thick * 0.6, trunk), (-thick * 0.6, trunk)], bark)
    sprite.polygon([(-thick, 0), (-thick * 0.2, 0), (-thick * 0.1, trunk), (-thick * 0.6, trunk)],
                   bark * 0.7)  # fmt: skip
    if form == 'conifer':
        for level in range(6):
            y, half = trunk + height * 0.13 * level, height * (0.22 - 0.034 * level)
            teeth = np.linspace(-half, half, 9)
            hem = [(x, y - height * 0.03 * (i % 2)) for i, x in enumerate(teeth)]
            sprite.polygon([*hem, (0, y + height * 0.27)], leaf * (0.7 + 0.06 * level))
            sprite.polygon([*hem[4:], (0, y + height * 0.27)], leaf * (0.86 + 0.06 * level))
        return
    wide = height * (0.13 if form == 'poplar' else rng.uniform(0.26, 0.34))
    tall, middle = height * (0.4 if form == 'poplar' else 0.29), height * 0.68
    if form == 'poplar':
        middle = height * 0.58
    count = int(np.clip(height * sprite.scale / 3, 24, 70))  # a far tree needs fewer tufts
    angle, reach = rng.uniform(0, 2 * np.pi, count), np.sqrt(rng.random(count))
    x, y = np.cos(angle) * reach * wide, middle + np.sin(angle) * reach * tall
    # Tufts low in the crown lie in its shade; the sun comes from the right of the board.
    lit = 0.72 + 0.3 * (y - middle) / tall + 0.14 * x / wide + rng.normal(0, 0.09, count)
    size = rng.uniform(0.16, 0.3, count) * min(wide, tall) * 1.25
    sprite.disc(0, middle, wide * 0.85, leaf * 0.62, squash=tall / wide)
    for i in np.argsort(lit):
        tuft = _TUFTS[i % len(_TUFTS)] * size[i] + [x[i], y[i]]
        sprite.polygon(tuft, leaf * lit[i] + [0, 4, 0])


def draw_streetlight(sprite: Sprite, rng: np.random.Generator, height: float) -> None:
    """Draw a lamp post whose arm reaches to the board's right."""
    metal = jitter(rng, (62, 68, 70), 8)
    reach = height * 0.2
    sprite.stroke([(0, 0), (0, height * 0.9)], 0.2, metal)
    sprite.polygon([(-0.2, 0), (0.2, 0), (0.15, 0.7), (-0.15, 0.7)], metal * 0.85)
    arm = [(0, height * 0.9), (reach * 0.3, height * 0.98), (reach, height)]
    sprite.stroke(arm, 0.14, metal)
    lamp = [(reach - 0.2, height + 0.12), (reach + 0.65, height + 0.08),
            (reach + 0.6, height - 0.16), (reach - 0.15, height - 0.12)]  # fmt: skip
    sprite.polygon(lamp, metal)
    sprite.polygon([lamp[3], lamp[2], (reach + 0.5, height - 0.24), (reach, height - 0.22)],
                   (250, 240, 196))  # fmt: skip


def draw_traffic_light(sprite: Sprite, rng: np.random.Generator, height: float) -> None:
    """Draw the lamps of a traffic light that reaches up to ``height``."""
    half, tall = 0.27, 0.62
    height -= tall * 1.08
    box = [(-half, -tall), (half, -tall), (half, tall), (-half, tall)]
    frame = jitter(rng, _pick(rng, ((216, 176, 40), (40, 44, 44))), 6)
    sprite.polygon([(x * 1.2, height + y * 1.08) for x, y in box], frame)
    sprite.polygon([(x, height + y) for x, y in box], (28, 30, 32))
    lit = rng.integers(3)
    for i, colour in enumerate(((255, 50, 40), (255, 196, 40), (60, 240, 120))):
        lamp = np.array(colour) * (1.0 if i == lit else 0.3)
        sprite.disc(0, height + 0.4 * (1 - i), 0.19, lamp)
        if i == lit:
            sprite.disc(0, height + 0.4 * (1 - i), 0.1, lamp * 0.5 + 127)


def draw_stop_sign(sprite: Sprite, rng: np.random.Generator, height: float) -> None:
    """Draw an octagonal plate with the word STOP, its top at ``height``."""
    height -= 0.52
    angles = np.arange(8) * np.pi / 4 + np.pi / 8
    plate = np.stack([np.cos(angles), np.sin(angles)], axis=1) * 0.52
    centre = np.array((0, height))
    sprite.polygon(plate + centre, (240, 240, 236))
    sprite.polygon(plate * 0.9 + centre, jitter(rng, (196, 24, 34), 8))
    x, y = sprite.foot[0], sprite.foot[1] - height * sprite.scale
    size = sprite.scale / 98
    thick = max(1, round(size * 2.4))
    (wide, tall), _ = cv2.getTextSize('STOP', cv2.FONT_HERSHEY_SIMPLEX, size, thick)
    corner = (round(x - wide / 2), round(y + tall / 2))
    cv2.putText(sprite.canvas.rgb, 'STOP', corner, cv2.FONT_HERSHEY_SIMPLEX, size,
                (246, 246, 244), thick, cv2.LINE_AA)  # fmt: skip


def draw_bench(sprite: Sprite, rng: np.random.Generator, height: float) -> None:
    """Draw a park bench seen from the front."""
    wood, iron = jitter(rng, (158, 100, 54), 12), (46, 48, 52)
    half = height
    for x in (-half * 0.86, half * 0.86):
        sprite.stroke([(x, 0.0), (x, 0.95)], 0.09, iron)
        sprite.stroke([(x - 0.1, 0.03), (x + 0.1, 0.03)], 0.08, iron)
    sprite.polygon([(-half, 0.5), (half, 0.5), (half, 0.96), (-half, 0.96)], wood * 0.45)
    for y in (0.52, 0.68, 0.84):
        sprite.polygon([(-half, y), (half, y), (half, y + 0.12), (-half, y + 0.12)], wood)
    sprite.polygon([(-half, 0.38), (half, 0.38), (half * 0.97, 0.5), (-half * 0.97, 0.5)],
                   wood * 1.15)  # fmt: skip
    sprite.polygon([(-half, 0.32), (half, 0.32), (half, 0.39), (-half, 0.39)], wood * 0.6)


def draw_kite(sprite: Sprite, rng: np.random.Generator, size: float) -> None:
    """Draw a diamond kite of two bright colours with a tail of bows, centred on the foot."""
    first, second = rng.permutation(len(_SHIRTS))[:2]
    tones = (np.array(_SHIRTS[first]) * 1.1, np.array(_SHIRTS[second]) * 1.1)
    turn = rng.uniform(-0.6, 0.6)
    cos, sin = np.cos(turn), np.sin(turn)
    spin = np.array([[cos, sin], [-sin, cos]]) * size / 2
    top, right, foot, left, middle = (
        np.array([(0, 1), (0.72, 0.25), (0, -1), (-0.72, 0.25), (0, 0.25)]) @ spin
    )
    tail = np.array([(0, -1), (0.16, -1.35), (-0.1, -1.7), (0.12, -2.05)]) @ spin
    sprite.stroke([tuple(p) for p in tail], size * 0.035, (70, 70, 74))
    for p in tail[1:]:
        sprite.disc(p[0], p[1], size * 0.085, tones[1], squash=0.6, tilt=turn)
    for a, b, tone in ((top, right, 0), (right, foot, 1), (foot, left, 0), (left, top, 1)):
        sprite.polygon([a, b, middle], tones[tone])
    for p, q in ((top, foot), (left, right)):
        sprite.stroke([tuple(p), tuple(q)], size * 0.025, (60, 50, 48))


def _pick(rng: np.random.Generator, palette: tuple[Colour, ...]) -> Colour:
    return palette[rng.integers(len(palette))]
