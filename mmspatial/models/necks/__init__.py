"""Necks of our own, for mmseg and mmdet alike."""

from .pyramid import SimpleFeaturePyramid

__all__ = ['SimpleFeaturePyramid']
