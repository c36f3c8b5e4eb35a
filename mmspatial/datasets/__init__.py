"""Built-in demo scenes, written as ADE20K and COCO are laid out; needs NumPy and OpenCV alone."""

from mmspatial.datasets.scenes import SCENE_CATEGORIES, SCENE_CLASSES, Scene, draw_scene
from mmspatial.datasets.writers import write_ade20k, write_coco

__all__ = [
    'SCENE_CATEGORIES',
    'SCENE_CLASSES',
    'Scene',
    'draw_scene',
    'write_ade20k',
    'write_coco',
]
