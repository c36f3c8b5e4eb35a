"""Street scenes drawn by a program, with exact labels."""

from mmspatial.datasets.scenes.classes import (
    COCO_CATEGORIES,
    SCENE_CATEGORIES,
    SCENE_CLASSES,
)
from mmspatial.datasets.scenes.compose import Instance, Scene, draw_scene

__all__ = [
    'COCO_CATEGORIES',
    'SCENE_CATEGORIES',
    'SCENE_CLASSES',
    'Instance',
    'Scene',
    'draw_scene',
]
