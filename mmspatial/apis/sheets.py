"""Put pictures side by side, with titles and a legend of their colours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from .lettering import PAPER, text_size, write
from .pictures import GREY, Classes, Instances, Picture, Result, hatch, known_labels

Legend = list[tuple[str, Picture]]


def legend(results: Sequence[Result], classes: Classes) -> Legend:
    """List what the colours of label maps mean, largest area first.

    Args:
        results: What the pictures show. Instances carry their names themselves: of them, only
            the hatching of crowds is explained.
        classes: Names and colours.

    Returns:
        Names and swatches of exactly the classes that occur, and last what grey hatching means.
    """
    count = len(classes.names)
    areas = np.zeros(count + 1)
    crowd = False
    for result in results:
        if isinstance(result, Instances):
            crowd |= result.crowd is not None and bool(result.crowd.any())
        else:
            areas += np.bincount(known_labels(result, count).ravel(), minlength=count + 1)
    entries = [
        (classes.names[i], hatch((24, 24), [classes.palette[i]]))
        for i in np.argsort(-areas[:count], kind='stable')
        if areas[i]
    ]
    if areas[count]:
        entries.append(('no label', hatch((24, 24), GREY)))
    if crowd:
        entries.append(('crowd', hatch((24, 24), GREY)))
    return entries


def sheet(
    rows: Sequence[Sequence[Picture]], titles: Sequence[str] = (), entries: Legend | None = None
) -> Picture:
    """Put pictures in rows on white paper, titles above and a legend below.

    Args:
        rows: Pictures, as many in each row.
        titles: One for each column, or none.
        entries: What `legend` returned.

    Returns:
        The sheet; it is as wide as its widest row, title or legend entry asks for.
    """
    text = min(max(min(p.shape[0] for row in rows for p in row) // 20, 14), 120)
    margin, gap = round(text * 0.9), round(text * 0.5)
    columns = [max(picture.shape[1] for picture in column) for column in zip(*rows, strict=True)]
    for i, title in enumerate(titles):
        columns[i] = max(columns[i], text_size(title, text)[0])
    grid = _legend_grid(entries or [], sum(columns) + gap * (len(columns) - 1), text)
    width = max(sum(columns) + gap * (len(columns) - 1), grid.shape[1])
    heights = [max(picture.shape[0] for picture in row) for row in rows]
    top = margin + (text_size('', text)[1] + gap if titles else 0)
    bottom = top + sum(heights) + gap * (len(rows) - 1)
    height = bottom + (grid.shape[0] + gap + margin if grid.size else margin)

    paper = Image.new('RGB', (width + 2 * margin, height), PAPER)
    pen = ImageDraw.Draw(paper)
    lefts = [margin + sum(columns[:i]) + gap * i for i in range(len(columns))]
    for left, column, title in zip(lefts, columns, titles, strict=False):
        write(pen, (left + (column - text_size(title, text)[0]) // 2, margin), title, text)
    for row, tall in zip(rows, heights, strict=True):
        for left, column, picture in zip(lefts, columns, row, strict=True):
            corner = left + (column - picture.shape[1]) // 2, top + (tall - picture.shape[0]) // 2
            paper.paste(Image.fromarray(picture), corner)
        top += tall + gap
    if grid.size:
        paper.paste(Image.fromarray(grid), (margin, bottom + gap))
    return np.array(paper)


def _legend_grid(entries: Legend, room: int, text: int) -> Picture:
    """Lay out legend entries in columns of equal width, row by row, at most `room` wide."""
    if not entries:
        return np.zeros((0, 0, 3), np.uint8)
    tall = text_size('', text)[1]
    gap = text // 2
    cell = tall + gap + max(text_size(name, text)[0] for name, _ in entries)
    across = min(max((room + 2 * gap) // (cell + 2 * gap), 1), len(entries))
    down = -(-len(entries) // across)
    size = across * (cell + 2 * gap) - 2 * gap, down * (tall + gap) - gap
    paper = Image.new('RGB', size, PAPER)
    pen = ImageDraw.Draw(paper)
    for i, (name, swatch) in enumerate(entries):
        x, y = i % across * (cell + 2 * gap), i // across * (tall + gap)
        side = round(tall * 0.8)
        square = Image.fromarray(swatch).resize((side, side), Image.Resampling.NEAREST)
        paper.paste(square, (x, y + (tall - side) // 2))
        write(pen, (x + tall + gap // 2, y), name, text)
    return np.array(paper)
