"""Masks that go to another process come back equal, and are sent in bits."""

from __future__ import annotations

import copy
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from mmdet.structures.mask import BitmapMasks


def send(masks: BitmapMasks) -> tuple[BitmapMasks, int]:
    content = bytes(ForkingPickler.dumps(masks))
    return pickle.loads(content), len(content)


@pytest.mark.smoke
@pytest.mark.parametrize('count', [0, 3])
@pytest.mark.parametrize('largest', [1, 255])
def test_masks_arrive_as_they_were(count: int, largest: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 2, (count, 53, 77), np.uint8) * largest
    masks = BitmapMasks(pixels, 53, 77)
    found, size = send(masks)
    assert type(found) is BitmapMasks
    assert (found.height, found.width, found.masks.dtype) == (53, 77, np.uint8)
    np.testing.assert_array_equal(found.masks, pixels)
    assert (size < pixels.size / 7 + 500) == (largest == 1 or not count)
    # Not only sent: kept and changed as before.
    np.testing.assert_array_equal(copy.deepcopy(masks).flip().masks, pixels[..., ::-1])
    np.testing.assert_array_equal(found.flip().masks, pixels[..., ::-1])
