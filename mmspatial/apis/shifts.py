"""How a segmentor's labels change when its image moves.

A shift moves the image under the model, and the labels are read where the moved pixels are: a
model that commutes with shifts gives every pixel the label that it had before. The kinds:

- ``cyclic``: by whole pixels, what leaves on one side comes back on the other;
- ``fractional``: likewise by parts of a pixel, through the ideal (periodic, band-limited)
  interpolant; the image without any shift goes through it too, and loses its highest frequency;
- ``crop``: the model sees a window, which moves over the image by whole pixels;
- ``bilinear``: likewise by parts of a pixel, through bilinear interpolation.

The logits are read at (fractions of) pixels by bilinear interpolation, as mmseg does, but
periodically for the first two kinds, since clamping at the edges commutes with no cyclic shift; or
there by the ideal interpolant. The size of a shift is the larger of its two parts. In windows,
the compared pixels are those that every shift up to the largest leaves inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspatial.ops import resample
from mmspatial.ops.resample.matrix import axis_matrix

Shift = tuple[int, int]  # down and right, in parts of a pixel
Segmentor = Callable[[Tensor], Tensor]
# Images in one run of the model.
_BATCH = 4


@dataclass(frozen=True)
class Protocol:
    """How to move images.

    Attributes:
        kind: See the module's first lines.
        max_shift: Size of the largest shift in pixels.
        parts: Of the fractional kinds: shifts are by multiples of a pixel's part.
        every: Whether to try every shift of a size, not only those in eight directions.
        ideal: Of the cyclic kinds: whether logits are read through the ideal interpolant.
        divisor: Windows of the crops have sides divisible by this.
    """

    kind: str
    max_shift: int = 4
    parts: int = 2
    every: bool = False
    ideal: bool = False
    divisor: int = 32

    @property
    def steps(self) -> int:
        """Return how many steps of shifts are in a pixel."""
        return self.parts if self.kind in ('fractional', 'bilinear') else 1

    @property
    def is_periodic(self) -> bool:
        """Say whether what leaves the image comes back."""
        return self.kind in ('cyclic', 'fractional')

    def shifts(self) -> Iterator[tuple[float, list[Shift]]]:
        """Yield all sizes of shifts in pixels, from 0, with the shifts of that size."""
        yield 0.0, [(0, 0)]
        for k in range(1, self.max_shift * self.steps + 1):
            sides = range(-k, k + 1) if self.every else (-k, 0, k)
            ring = [(y, x) for y in sides for x in sides if max(abs(y), abs(x)) == k]
            yield k / self.steps, ring


class Views:
    """One image as a protocol moves it.

    Args:
        image: ``(1, C, h, w)``.
        protocol: How to move it.
        align_corners: Of the segmentor's bilinear interpolation.

    Raises:
        ValueError: If the image is too small for the shifts.
    """

    def __init__(self, image: Tensor, protocol: Protocol, align_corners: bool = False) -> None:
        self.protocol = protocol
        self.align_corners = align_corners
        size, most = image.shape[2:], protocol.max_shift
        if protocol.is_periodic:
            self.window, self.origin = tuple(size), (0, 0)
            spans = [(0, side) for side in size]
        else:
            self.window = tuple(
                (side - 2 * most) // protocol.divisor * protocol.divisor for side in size
            )
            self.origin = tuple(
                (side - span) // 2 for side, span in zip(size, self.window, strict=True)
            )
            spans = [
                (start + most, start + span - most)
                for start, span in zip(self.origin, self.window, strict=True)
            ]
        if any(start >= stop for start, stop in spans):
            raise ValueError(
                f'an image of {size[1]} x {size[0]} pixels leaves nothing to compare after shifts '
                f'by {most} in windows with sides divisible by {protocol.divisor}'
            )
        self.compared = tuple(slice(*span) for span in spans)
        if protocol.kind == 'fractional':
            # Once for all shifts.
            image = resample(image, (size[0] * protocol.steps, size[1] * protocol.steps))
        self.image = image

    def move(self, shift: Shift) -> Tensor:
        """Return what the model sees, ``(1, C, *window)``."""
        kind, steps = self.protocol.kind, self.protocol.steps
        if kind == 'cyclic':
            return self.image.roll(shift, (2, 3))
        if kind == 'fractional':
            return resample(self.image.roll(shift, (2, 3)), self.window)
        image = self.image
        for dim, (start, span, k) in enumerate(
            zip(self.origin, self.window, shift, strict=True), 2
        ):
            whole, part = divmod(start * steps - k, steps)
            near = image.narrow(dim, whole, span)
            if part:
                far = image.narrow(dim, whole + 1, span)
                near = torch.lerp(near, far, part / steps)
            image = near
        return image

    def labels(self, logits: Tensor, shift: Shift) -> Tensor:
        """Read the labels of the compared pixels.

        Args:
            logits: ``(1, C, H, W)``, what the model makes of the moved image.
            shift: By what it was moved.

        Returns:
            ``(h, w)``, int64.
        """
        matrices = [self._matrix(logits, axis, shift[axis]) for axis in range(2)]
        return (matrices[0] @ logits[0] @ matrices[1].T).argmax(0)

    def _matrix(self, logits: Tensor, axis: int, shift: int) -> Tensor:
        """Return the matrix that interpolates one axis at the moved pixels."""
        old, size, steps = logits.shape[2 + axis], self.window[axis], self.protocol.steps
        span = self.compared[axis]
        pixels = torch.arange(span.start, span.stop, device=logits.device) - self.origin[axis]
        moved = pixels * steps + shift
        if self.protocol.is_periodic and self.protocol.ideal:
            table = axis_matrix(old, size * steps, logits.device, logits.dtype)
            return table[moved % (size * steps)]
        where = moved.to(logits.dtype) / steps
        if self.align_corners:
            where = where * ((old - 1) / max(size - 1, 1))
        else:
            where = (where + 0.5) * (old / size) - 0.5
        if not self.protocol.is_periodic:
            where = where.clamp(0, old - 1)
        below = where.floor()
        part = (where - below).unsqueeze(-1)
        near, far = (
            F.one_hot((below.long() + step) % old, old).to(logits.dtype) for step in (0, 1)
        )
        return near * (1 - part) + far * part


@dataclass
class Tally:
    """Counts of one size of shifts, over images.

    Attributes:
        size: Of the shifts, in pixels.
        classes: How many.
        shifts: How many have been tried in each image.
        pixels: Compared, those without a class too.
        same: Pixels with the label that they have without a shift, the mean over the shifts.
        kept: Pixels with that label after every shift up to this size.
        areas: ``(3, classes)``: pixels that are right, labelled so, and predicted so, over all
            shifts of this size; pixels without a class do not count.
        worst: Likewise for labels of which each is the first wrong one that a shift up to this
            size has led to, the smallest shifts first, and right if none has.
    """

    size: float
    classes: int
    shifts: int = 0
    pixels: int = 0
    same: float = 0.0
    kept: int = 0
    areas: Tensor = field(init=False)
    worst: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.areas, self.worst = torch.zeros(2, 3, self.classes, dtype=torch.int64)

    def row(self) -> dict[str, float]:
        """Return what a table shows of it, shares from 0 to 1."""
        return {
            'shift': self.size,
            'consistency': self.same / max(self.pixels, 1),
            'accuracy': _accuracy(self.areas),
            'mIoU': _mean_iou(self.areas),
            'worst_consistency': self.kept / max(self.pixels, 1),
            'worst_accuracy': _accuracy(self.worst),
            'worst_mIoU': _mean_iou(self.worst),
        }


@torch.no_grad()
def tally(
    segmentor: Segmentor,
    image: Tensor,
    truth: Tensor,
    protocol: Protocol,
    tallies: list[Tally],
    *,
    ignore: int = 255,
    align_corners: bool = False,
) -> None:
    """Count how a segmentor labels one image under all shifts.

    Args:
        segmentor: Maps ``(B, C, h, w)`` to logits ``(B, classes, H, W)`` of any resolution.
        image: ``(1, C, h, w)``.
        truth: ``(h, w)``, int64.
        protocol: How to move the image.
        tallies: One for each size of shifts, in their order; added to.
        ignore: Label of pixels without a class.
        align_corners: See `Views`.

    Raises:
        ValueError: If the image is too small for the shifts.
    """
    views = Views(image, protocol, align_corners)
    truth = truth[views.compared]
    first: Tensor | None = None
    for (_, shifts), counts in zip(protocol.shifts(), tallies, strict=True):
        for start in range(0, len(shifts), _BATCH):
            some = shifts[start : start + _BATCH]
            logits = segmentor(torch.cat([views.move(shift) for shift in some]))
            for one, shift in zip(logits.split(1), some, strict=True):
                labels = views.labels(one, shift)
                if first is None:
                    first, worst, kept = labels, labels, torch.ones_like(labels, dtype=torch.bool)
                same = labels == first
                kept = kept & same
                worst = torch.where(worst == truth, labels, worst)
                counts.same += int(same.sum()) / len(shifts)
                counts.areas += _areas(labels, truth, counts.classes, ignore)
        counts.shifts = len(shifts)
        counts.pixels += truth.numel()
        counts.kept += int(kept.sum())
        counts.worst += _areas(worst, truth, counts.classes, ignore)


def _areas(labels: Tensor, truth: Tensor, classes: int, ignore: int) -> Tensor:
    """Count pixels by class, as `Tally.areas` has them."""
    keep = truth != ignore
    labels, truth = labels[keep], truth[keep]
    counted = (truth[labels == truth], truth, labels)
    return torch.stack([torch.bincount(x, minlength=classes) for x in counted]).cpu()


def _accuracy(areas: Tensor) -> float:
    return float(areas[0].sum() / areas[1].sum().clamp(min=1))


def _mean_iou(areas: Tensor) -> float:
    """Return the mean IoU of the classes that occur in truth or prediction, as mmseg does."""
    union = areas[1] + areas[2] - areas[0]
    return float((areas[0] / union).nanmean())
