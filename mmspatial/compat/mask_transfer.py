"""Send the masks of instances from a data loader's workers in bits.

mmdet holds a byte per pixel and instance, and NumPy arrays go between processes through a pipe,
piece by piece. At COCO's training size that is several MB per image, most of what the loader's main
process does; with this file it is an eighth.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import numpy as np


def send_bits(structures: ModuleType) -> None:
    """Let bitmap masks become bits on their way to another process, and nowhere else.

    Args:
        structures: The module ``mmdet.structures.mask.structures``.
    """
    ForkingPickler.register(structures.BitmapMasks, _reduce)


def _reduce(masks: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    pixels = masks.masks
    if pixels.dtype != np.uint8 or (pixels.size and pixels.max() > 1):
        return masks.__reduce_ex__(2)
    return _restore, (type(masks), np.packbits(pixels), pixels.shape)


def _restore(kind: type, bits: np.ndarray, shape: tuple[int, int, int]) -> Any:
    count = shape[0] * shape[1] * shape[2]
    return kind(np.unpackbits(bits, count=count).reshape(shape), *shape[1:])
