"""Text in pictures: its size, and places for it where nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from PIL import ImageDraw, ImageFont

Colour = tuple[int, int, int]
INK: Colour = (32, 32, 32)
PAPER: Colour = (255, 255, 255)


class Rect(NamedTuple):
    """Pixels with `left` <= x < `right` and `top` <= y < `bottom`."""

    left: int
    top: int
    right: int
    bottom: int

    def overlaps(self, other: Rect) -> bool:
        """Say whether the two have a pixel in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


@lru_cache(maxsize=32)
def _font(height: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(height)


def text_size(text: str, height: int) -> tuple[int, int]:
    """Return width and height of one line of text in pixels.

    Args:
        text: The line.
        height: Size of the font in pixels.
    """
    return round(_font(height).getlength(text) + 0.5), round(height * 1.25)


def write(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, height: int,
          ink: Colour = INK) -> None:  # fmt: skip
    """Write one line of text with its upper left corner at `at`."""
    middle = at[1] + text_size(text, height)[1] / 2
    draw.text((at[0], middle), text, fill=ink, font=_font(height), anchor='lm')


def ink_on(colour: Colour) -> Colour:
    """Return dark or white ink, whichever is easier to read on a colour."""
    red, green, blue = colour
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else PAPER


def free_place(
    canvas: tuple[int, int], anchor: Rect, size: tuple[int, int], taken: list[Rect]
) -> Rect | None:
    """Find a place for a label near a box, inside the canvas and off all other labels.

    Args:
        canvas: Width and height in pixels.
        anchor: The box to label.
        size: Width and height of the label.
        taken: Where labels are already.

    Returns:
        The best free place, or None if there is none that still belongs to the box.
    """
    width, height = size
    if width > canvas[0] or height > canvas[1]:
        return None
    for x, y in _wishes(anchor, width, height):
        left = min(max(x, 0), canvas[0] - width)
        top = min(max(y, 0), canvas[1] - height)
        place = Rect(left, top, left + width, top + height)
        if not any(place.overlaps(other) for other in taken):
            return place
    return None


def _wishes(anchor: Rect, width: int, height: int) -> Iterator[tuple[int, int]]:
    """Yield corners of a label, best first: at the box's top, its bottom, then down its sides."""
    columns = (anchor.left, anchor.right - width, (anchor.left + anchor.right - width) // 2)
    for y in (anchor.top - height, anchor.top, anchor.bottom, anchor.bottom - height):
        for x in columns:
            yield x, y
    for y in range(anchor.top + height, anchor.bottom - height, max(height // 2, 1)):
        for x in columns:
            yield x, y
