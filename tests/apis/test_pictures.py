from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from mmspatial.apis.lettering import Rect, free_place, text_size
from mmspatial.apis.pictures import (
    GREY,
    Classes,
    Instances,
    coloured_like,
    draw,
    fit,
    instance_colours,
)
from mmspatial.apis.sheets import legend, sheet

CLASSES = Classes(['sky', 'road', 'car'], [(10, 200, 250), (90, 90, 90), (200, 0, 30)])
RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (30, 40, 3), np.uint8)
LABELS = np.repeat([[0] * 10 + [1] * 20 + [255] * 10], 30, axis=0)


@pytest.mark.parametrize('opacity', [0.0, 0.25, 1.0])
def test_labels_are_mixed_with_the_image_by_opacity(opacity: float) -> None:
    picture = draw(IMAGE, LABELS, CLASSES, opacity=opacity)
    for label in (0, 1):
        there = label == LABELS
        expected = (1 - opacity) * IMAGE[there] + opacity * np.array(CLASSES.palette[label])
        assert np.abs(picture[there] - expected).max() <= 0.51


def test_ignored_pixels_are_grey_stripes() -> None:
    picture = draw(IMAGE, LABELS, CLASSES, opacity=1)
    colours = {tuple(c) for c in picture[LABELS == 255].tolist()}
    assert colours == set(GREY)
    assert not colours & set(CLASSES.palette)


def test_enlarged_labels_stay_classes() -> None:
    picture = draw(IMAGE, LABELS, CLASSES, size=(400, 300), opacity=1)
    assert picture.shape == (300, 400, 3)
    assert_array_equal(picture[:, :100], np.broadcast_to(CLASSES.palette[0], (300, 100, 3)))
    assert_array_equal(picture[:, 100:300], np.broadcast_to(CLASSES.palette[1], (300, 200, 3)))


def test_drawing_changes_neither_image_nor_labels() -> None:
    image, labels = IMAGE.copy(), LABELS.copy()
    draw(image, labels, CLASSES)
    draw(image, THINGS, CLASSES)
    assert_array_equal(image, IMAGE)
    assert_array_equal(labels, LABELS)


@pytest.mark.parametrize(
    ('shape', 'most', 'expected'),
    [
        ((128, 256), None, (512, 256)),
        ((1, 1), None, (256, 256)),
        ((600, 900), None, (900, 600)),
        ((600, 900), 450, (450, 300)),
        ((1, 2000), None, (2000, 1)),
        ((10, 800), None, (1600, 20)),
    ],
)
def test_size_of_pictures(
    shape: tuple[int, int], most: int | None, expected: tuple[int, int]
) -> None:
    assert fit(np.zeros((*shape, 3), np.uint8), most=most) == expected


def test_legend_lists_the_classes_that_occur_largest_first() -> None:
    names = [name for name, _ in legend([LABELS], CLASSES)]
    assert names == ['road', 'sky', 'no label']
    both = legend([LABELS, np.full((90, 90), 2)], CLASSES)
    assert [name for name, _ in both] == ['car', 'road', 'sky', 'no label']
    for name, swatch in both[:3]:
        colour = CLASSES.palette[CLASSES.names.index(name)]
        assert_array_equal(swatch, np.broadcast_to(colour, swatch.shape))


def _things(crowd: bool = False) -> Instances:
    masks = np.zeros((2, 30, 40), bool)
    masks[0, 5:15, 5:15] = True
    masks[1, 18:28, 20:36] = True
    boxes = np.array([[5, 5, 15, 15], [20, 18, 36, 28]], float)
    return Instances(boxes, np.array([2, 0]), None, masks, np.array([False, crowd]))


THINGS = _things()


def test_masks_are_tinted_inside_and_nothing_is_drawn_outside() -> None:
    size = (400, 300)
    bare = draw(IMAGE, THINGS._replace(boxes=THINGS.boxes[:0], masks=None), CLASSES, size)
    picture = draw(IMAGE, THINGS, CLASSES, size, opacity=1)
    first, second = instance_colours(2)
    assert_array_equal(picture[80:145, 55:145], np.broadcast_to(first, (65, 90, 3)))
    assert_array_equal(picture[215:275, 205:355], np.broadcast_to(second, (60, 150, 3)))
    changed = (picture != bare).any(-1)
    # The boxes with room for a label above or inside them.
    allowed = np.zeros_like(changed)
    allowed[30:152, 48:152] = True
    allowed[160:282, 198:362] = True
    assert not (changed & ~allowed).any()


def test_crowds_are_striped() -> None:
    size = (400, 300)
    plain = draw(IMAGE, THINGS, CLASSES, size, opacity=1)[220:275, 240:340]
    crowd = draw(IMAGE, _things(crowd=True), CLASSES, size, opacity=1)[220:275, 240:340]
    assert {tuple(c) for c in plain.reshape(-1, 3).tolist()} == {instance_colours(2)[1]}
    stripes = {tuple(c) for c in crowd.reshape(-1, 3).tolist()}
    assert stripes == {instance_colours(2)[1], GREY[0]}
    assert [name for name, _ in legend([_things(crowd=True)], CLASSES)] == ['crowd']
    assert legend([THINGS], CLASSES) == []


def test_surer_things_are_on_top() -> None:
    masks = np.ones((2, 30, 40), bool)
    boxes = np.array([[0, 0, 40, 30]] * 2, float)
    for scores, top in (([0.4, 0.9], 1), ([0.9, 0.4], 0)):
        things = Instances(boxes, np.array([1, 1]), np.array(scores), masks)
        picture = draw(IMAGE, things, CLASSES, (400, 300), opacity=1)
        assert tuple(picture[200, 200]) == instance_colours(2)[top]


def test_things_found_have_the_colours_of_the_true_ones() -> None:
    boxes = np.array([[21, 18, 36, 28], [5, 5, 15, 16], [5, 5, 15, 15], [0, 0, 3, 3]], float)
    found = coloured_like(Instances(boxes, np.zeros(4, int)), THINGS)
    first, second = instance_colours(2)
    assert found.colours is not None
    assert found.colours[:2] == [second, first]
    assert len({*found.colours}) == 4
    none = Instances(np.zeros((0, 4)), np.zeros(0, int))
    assert coloured_like(none, THINGS).colours == []
    assert len(coloured_like(THINGS, none).colours or []) == 2


def test_labels_never_overlap_and_stay_inside() -> None:
    canvas, taken = (300, 200), []
    for _ in range(60):
        left, top = RNG.integers(-10, 280), RNG.integers(-10, 180)
        box = Rect(left, top, left + RNG.integers(1, 90), top + RNG.integers(1, 90))
        place = free_place(canvas, box, (60, 15), taken)
        if place:
            assert not any(place.overlaps(other) for other in taken)
            assert min(place[:2]) >= 0
            assert place.right <= 300
            assert place.bottom <= 200
            taken.append(place)
    assert len(taken) > 15
    assert free_place((50, 50), Rect(0, 0, 9, 9), (60, 15), []) is None


def test_sheet_holds_all_pictures_and_nothing_leaves_the_paper() -> None:
    row = [np.full((60, 80, 3), value, np.uint8) for value in (3, 5, 7)]
    entries = legend([np.array([[0, 1, 2, 255]])], Classes(['a' * 30, 'b', 'c'], CLASSES.palette))
    for rows in ([row], [row, row]):
        paper = sheet(rows, ('image', 'truth', 'x' * 40), entries)
        for value in (3, 5, 7):
            assert (paper == value).all(-1).sum() == 4800 * len(rows)
        for colour in CLASSES.palette:
            assert (paper == colour).all(-1).sum() >= 100
        edges = (paper[:4], paper[-4:], paper[:, :4], paper[:, -4:])
        assert all((edge == 255).all() for edge in edges)
    assert sheet([row]).shape[0] < sheet([row], ('a', 'b', 'c')).shape[0]


def test_text_is_as_wide_as_it_says() -> None:
    assert text_size('mm', 20)[0] > 1.8 * text_size('m', 20)[0] > 0
    assert text_size('m', 40)[0] > 1.8 * text_size('m', 20)[0]
