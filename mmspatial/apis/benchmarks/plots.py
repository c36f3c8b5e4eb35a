"""Curves of time and memory over size, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import warn
from .records import Row

# Okabe and Ito's colours and a ninth, which people with any colour vision tell apart.
_COLOURS = (
    '#d55e00',
    '#000000',
    '#009e73',
    '#cc79a7',
    '#e69f00',
    '#0072b2',
    '#56b4e9',
    '#999999',
    '#882255',
)
_MARKERS = 'osD^vPX*h'
_DASHES = ('-', '--', ':', '-.')

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: Above it.
        y_label: Of the vertical axis.
        curves: Points by name.
    """

    title: str
    y_label: str
    curves: Mapping[str, Curve]


@dataclass(frozen=True)
class Style:
    """How a curve is drawn.

    Attributes:
        colour: Index of its colour and marker.
        dash: Index of its kind of line: solid, dashed, dotted, both.
    """

    colour: int
    dash: int = 0


def plot(
    path: Path,
    rows: Sequence[Sequence[Panel]],
    x_label: str,
    caption: str,
    styles: Mapping[str, Style],
) -> None:
    """Draw panels in rows, with one legend for all; without matplotlib only say so.

    Args:
        path: Where the PNG goes.
        rows: Panels, as many in each row.
        x_label: Of all horizontal axes.
        caption: A line at the bottom: where it was measured.
        styles: Of all curves that there may be, in the legend's order.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator
    except ImportError:
        warn("no plot, since matplotlib is missing: pip install 'mmspatial[bench]'")
        return
    across, down = max(map(len, rows)), len(rows)
    figure = Figure(figsize=(4.2 * across, 2.7 * down + 0.9), dpi=110, layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False)
    handles = {}
    for row, row_axes in zip(rows, axes, strict=True):
        for panel, ax in zip(row, row_axes, strict=True):
            for name, points in panel.curves.items():
                xs, ys = zip(*points, strict=True)
                (handles[name],) = ax.plot(xs, ys, label=name, **_line(styles[name]))
            ax.set(title=panel.title, xlabel=x_label, ylabel=panel.y_label)
            ax.set_xscale('log', base=2)
            ax.set_yscale('log')
            ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.yaxis.set_major_formatter('{x:g}')
            ax.title.set_fontsize('medium')
            sizes = sorted({x for points in panel.curves.values() for x, _ in points})
            ax.set_xticks(sizes, [_thousands(size) for size in sizes])
            ax.minorticks_off()
            ax.grid(alpha=0.25)
            ax.spines[['top', 'right']].set_visible(False)
    names = [name for name in styles if name in handles]
    # An inch holds some dozen letters.
    figure.legend(
        [handles[name] for name in names], names, loc='outside upper center',
        ncols=max(int(figure.get_figwidth() / (0.6 + 0.085 * max(map(len, names), default=1))), 1),
        frameon=False,
    )  # fmt: skip
    figure.supxlabel(caption, fontsize='small', color='0.4')
    path.parent.mkdir(parents=True, exist_ok=True)
    # Neither the date nor the version of matplotlib: the file says what the CSV says.
    figure.savefig(path, metadata={'Software': None})


def curves(rows: Sequence[Row], name: Callable[[Row], str], x: str, y: str) -> dict[str, Curve]:
    """Collect points from rows, but for what is missing or 0, which has no logarithm.

    Args:
        rows: Measurements.
        name: Returns the curve of a row.
        x: Column of the horizontal axis.
        y: Column of the vertical axis.

    Returns:
        Points of each curve by ascending x.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.get(y):
            found.setdefault(name(row), []).append((float(row[x]), float(row[y])))
    return {key: sorted(points) for key, points in found.items()}


def _line(style: Style) -> dict[str, object]:
    return {
        'color': _COLOURS[style.colour % len(_COLOURS)],
        'marker': _MARKERS[style.colour % len(_MARKERS)],
        'markersize': 4,
        'linewidth': 1.4,
        'linestyle': _DASHES[style.dash % len(_DASHES)],
    }


def _thousands(value: float) -> str:
    return f'{value:,.0f}'.replace(',', ' ')
