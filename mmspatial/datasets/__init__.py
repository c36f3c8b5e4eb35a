"""Built-in demo scenes, written as known data sets are laid out; needs NumPy and OpenCV alone."""

from mmspatial.datasets.scenes import SCENE_CATEGORIES, SCENE_CLASSES, Scene, draw_scene
from mmspatial.datasets.writers import (
    WRITERS,
    write_ade20k,
    write_coco,
    write_cocostuff,
    write_pascal59,
)

__all__ = [
    'SCENE_CATEGORIES',
    'SCENE_CLASSES',
    'WRITERS',
    'Scene',
    'draw_scene',
    'write_ade20k',
    'write_coco',
    'write_cocostuff',
    'write_pascal59',
]
