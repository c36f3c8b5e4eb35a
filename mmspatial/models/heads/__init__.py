"""Heads of our own; everything else is mmseg's and mmdet's."""
