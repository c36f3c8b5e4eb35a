"""Arrange the import hooks before any test file here imports mmcv."""

from __future__ import annotations

import mmspatial  # noqa: F401
