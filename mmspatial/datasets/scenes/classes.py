"""What a scene can show, and the names and numbers that data sets give it."""

from __future__ import annotations

from typing import NamedTuple

SCENE_CLASSES: dict[str, int] = {
    'building': 2,
    'sky': 3,
    'tree': 5,
    'road': 7,
    'grass': 10,
    'sidewalk': 12,
    'person': 13,
    'mountain': 17,
    'car': 21,
    'fence': 33,
    'signboard': 44,
    'bench': 70,
    'bus': 81,
    'streetlight': 88,
    'animal': 127,
    'traffic light': 137,
}
"""ADE20K's names of the classes in the scenes, with their ids in annotation files (1 to 150)."""

PASCAL59_LABELS: dict[str, tuple[str, int]] = {
    'building': ('building', 11),
    'sky': ('sky', 47),
    'tree': ('tree', 53),
    'road': ('road', 41),
    'grass': ('grass', 29),
    'sidewalk': ('sidewalk', 45),
    'person': ('person', 37),
    'mountain': ('mountain', 35),
    'car': ('car', 14),
    'fence': ('fence', 25),
    'signboard': ('sign', 46),
    'bench': ('bench', 5),
    'bus': ('bus', 12),
    'streetlight': ('light', 33),
    'animal': ('dog', 23),
    'traffic light': ('light', 33),
}
"""Pascal Context's names of these classes, with their ids in annotation files (1 to 59)."""

COCOSTUFF_LABELS: dict[str, tuple[str, int]] = {
    'building': ('building-other', 84),
    'sky': ('sky-other', 145),
    'tree': ('tree', 157),
    'road': ('road', 137),
    'grass': ('grass', 112),
    'sidewalk': ('pavement', 128),
    'person': ('person', 0),
    'mountain': ('mountain', 123),
    'car': ('car', 2),
    'fence': ('fence', 101),
    'signboard': ('stop sign', 11),
    'bench': ('bench', 13),
    'bus': ('bus', 5),
    'streetlight': ('light', 118),
    'animal': ('dog', 16),
    'traffic light': ('traffic light', 9),
}
"""COCO-Stuff's names of these classes, with their ids in mmseg's annotation files (0 to 170)."""

# fmt: off
_COCO_NAMES = (
    'person', 'bicycle', 'car', 'motorcycle', 'airplane', 'bus', 'train', 'truck', 'boat',
    'traffic light', 'fire hydrant', 'stop sign', 'parking meter', 'bench', 'bird', 'cat', 'dog',
    'horse', 'sheep', 'cow', 'elephant', 'bear', 'zebra', 'giraffe', 'backpack', 'umbrella',
    'handbag', 'tie', 'suitcase', 'frisbee', 'skis', 'snowboard', 'sports ball', 'kite',
    'baseball bat', 'baseball glove', 'skateboard', 'surfboard', 'tennis racket', 'bottle',
    'wine glass', 'cup', 'fork', 'knife', 'spoon', 'bowl', 'banana', 'apple', 'sandwich',
    'orange', 'broccoli', 'carrot', 'hot dog', 'pizza', 'donut', 'cake', 'chair', 'couch',
    'potted plant', 'bed', 'dining table', 'toilet', 'tv', 'laptop', 'mouse', 'remote',
    'keyboard', 'cell phone', 'microwave', 'oven', 'toaster', 'sink', 'refrigerator', 'book',
    'clock', 'vase', 'scissors', 'teddy bear', 'hair drier', 'toothbrush',
)
# fmt: on
# COCO numbers its 80 classes within 1..90: these ten numbers were retired before 2014.
_COCO_UNUSED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}

COCO_CATEGORIES: dict[str, int] = dict(
    zip(_COCO_NAMES, (i for i in range(1, 91) if i not in _COCO_UNUSED), strict=True)
)
"""All 80 COCO categories in official order, with their official ids."""


class Kind(NamedTuple):
    """What a painted thing is called in each data set; None where the data set has no name."""

    ade: str | None
    coco: str | None = None


KINDS: dict[str, Kind] = {
    'sky': Kind('sky'),
    'mountain': Kind('mountain'),
    'building': Kind('building'),
    'tree': Kind('tree'),
    'road': Kind('road'),
    'grass': Kind('grass'),
    'sidewalk': Kind('sidewalk'),
    'fence': Kind('fence'),
    'streetlight': Kind('streetlight'),
    # Posts and strings are too thin to learn at demo size: unlabelled, like much of ADE20K.
    'post': Kind(None),
    'person': Kind('person', 'person'),
    'car': Kind('car', 'car'),
    'bus': Kind('bus', 'bus'),
    'dog': Kind('animal', 'dog'),
    'bench': Kind('bench', 'bench'),
    'traffic light': Kind('traffic light', 'traffic light'),
    'stop sign': Kind('signboard', 'stop sign'),
    'kite': Kind(None, 'kite'),
}

SCENE_CATEGORIES: dict[str, int] = {
    kind.coco: COCO_CATEGORIES[kind.coco] for kind in KINDS.values() if kind.coco
}
"""The COCO categories that occur in the scenes, with their official ids."""
