"""The picture and its truth: one scene model, exact visible pixels, equal for equal seeds."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from mmspatial.datasets import SCENE_CATEGORIES, SCENE_CLASSES, Scene, draw_scene
from mmspatial.datasets.scenes.canvas import Camera, Canvas, Light
from mmspatial.datasets.scenes.classes import COCO_CATEGORIES, KINDS

SIZE = (72, 96)


@pytest.fixture(scope='module')
def scenes() -> list[Scene]:
    return [draw_scene(np.random.default_rng((3, i)), SIZE) for i in range(48)]


@pytest.fixture
def canvas() -> Canvas:
    camera = Camera(
        yaw=0.4, position=(1.0, -2.0), height=1.6, focal=80.0, centre=50.0, horizon=30.0
    )
    light = Light(np.array((0.0, 1.0, 0.0)), np.full(3, 200.0, np.float32), 1e9, 0.5)
    return Canvas(np.zeros((80, 100, 3), np.uint8), np.zeros((80, 100), np.uint16), camera, light)


@pytest.mark.smoke
def test_equal_generators_give_equal_scenes() -> None:
    first, again, other = (draw_scene(np.random.default_rng(seed), SIZE) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first.image, again.image)
    np.testing.assert_array_equal(first.semantic, again.semantic)
    assert len(first.instances) == len(again.instances)
    for a, b in zip(first.instances, again.instances, strict=True):
        assert (a.category_id, a.crowd) == (b.category_id, b.crowd)
        np.testing.assert_array_equal(a.mask, b.mask)
    assert (first.image != other.image).mean() > 0.5


@pytest.mark.parametrize('size', [(32, 32), (61, 97), (120, 50)])
def test_any_size(size: tuple[int, int]) -> None:
    scene = draw_scene(np.random.default_rng(0), size)
    assert scene.image.shape == (*size, 3)
    assert scene.image.dtype == scene.semantic.dtype == np.uint8
    assert scene.semantic.shape == size
    assert all(instance.mask.shape == size for instance in scene.instances)
    assert scene.image.std() > 20


def test_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match='31 x 64 pixels is too small'):
        draw_scene(np.random.default_rng(0), (31, 64))


def test_every_class_occurs_and_no_other(scenes: list[Scene]) -> None:
    semantic = {int(number) for scene in scenes for number in np.unique(scene.semantic)}
    assert semantic == {0, *SCENE_CLASSES.values()}
    assert {i.category_id for scene in scenes for i in scene.instances} == set(
        SCENE_CATEGORIES.values()
    )
    assert any(i.crowd for scene in scenes for i in scene.instances)


def test_instances_are_the_visible_pixels_of_their_class(scenes: list[Scene]) -> None:
    for scene in scenes:
        masks = [instance.mask for instance in scene.instances]
        assert np.sum(masks, axis=0, dtype=int).max(initial=0) <= 1, 'instances overlap'
        assert all(mask.any() for mask in masks)
        for kind in KINDS.values():
            if kind.coco is None:
                continue
            union = np.zeros(SIZE, bool)
            for instance in scene.instances:
                if instance.category_id == COCO_CATEGORIES[kind.coco]:
                    union |= instance.mask
            if kind.ade is None:
                assert (scene.semantic[union] == 0).all()
            else:
                np.testing.assert_array_equal(scene.semantic == SCENE_CLASSES[kind.ade], union)


def test_most_things_are_large_enough_to_learn(scenes: list[Scene]) -> None:
    areas = [i.mask.mean() for scene in scenes for i in scene.instances]
    assert np.median(areas) > 0.01
    assert np.mean(np.array(areas) < 0.002) < 0.1


def test_a_later_stroke_covers_an_earlier_one_in_picture_and_map(canvas: Canvas) -> None:
    red, blue = canvas.layer('car'), canvas.layer('person')
    blue = canvas.layer('person')
    canvas.polygon([(10, 10), (60, 10), (60, 50), (10, 50)], (255, 0, 0), red)
    canvas.polygon([(40, 30), (90, 30), (90, 70), (40, 70)], (0, 0, 255), blue)
    np.testing.assert_array_equal(canvas.ids == blue, canvas.rgb[..., 2] == 255)
    assert canvas.ids[20, 20] == red == 0
    assert canvas.rgb[20, 20].tolist() == [255, 0, 0]
    assert canvas.ids[40, 50] == blue


def test_ground_inverts_the_projection(canvas: Canvas) -> None:
    places = np.array([(1.5, 0.0, 3.0), (-2.0, 0.0, 9.0), (4.0, 0.0, 6.5)])
    view = canvas.camera.view(places)
    columns, rows = canvas.camera.pixels(view).T
    s, t, depth = canvas.camera.ground(rows, columns)
    np.testing.assert_allclose(s, places[:, 0], atol=1e-9)
    np.testing.assert_allclose(t, places[:, 2], atol=1e-9)
    np.testing.assert_allclose(depth, view[:, 2], atol=1e-9)


def test_a_texture_is_read_at_the_metres_of_each_pixel(canvas: Canvas) -> None:
    def shader(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.stack([a * 20, b * 20, np.zeros_like(a)], axis=1)

    layer = canvas.layer('building')
    canvas.textured(
        (-2, 0, 8), (1, 0, 0), (0, 1, 0), [(0, 0), (9, 0), (9, 5), (0, 5)], shader, layer
    )
    for a, b in ((2.0, 1.0), (5.0, 2.5), (6.0, 0.5)):
        column, row = np.round(canvas.camera.pixels(canvas.camera.view([(-2 + a, b, 8)]))[0])
        # Rounding to a pixel moves the point by at most 0.5 px, about 0.1 m here.
        np.testing.assert_allclose(canvas.rgb[int(row), int(column), :2] / 20, (a, b), atol=0.15)


def test_what_reaches_behind_the_camera_is_cut_off(canvas: Canvas) -> None:
    yaw, (s, t) = canvas.camera.yaw, canvas.camera.position
    ahead, right = (math.sin(yaw), math.cos(yaw)), (math.cos(yaw), -math.sin(yaw))

    def place(x: float, z: float) -> tuple[float, float, float]:
        return s + x * right[0] + z * ahead[0], 0.0, t + x * right[1] + z * ahead[1]

    strip = [place(-1, -20), place(1, -20), place(1, 20), place(-1, 20)]
    canvas.face(strip, (90, 90, 90), canvas.layer('road'))
    painted = np.argwhere(canvas.rgb[..., 0] > 0)
    assert painted[:, 0].min() > canvas.camera.horizon
    assert canvas.rgb[-1, 50, 0] == 90
    before = canvas.rgb.copy()
    canvas.face([place(-1, -9), place(1, -9), place(1, -2)], (250, 0, 0), canvas.layer('car'))
    np.testing.assert_array_equal(canvas.rgb, before)


def test_scenes_need_neither_torch_nor_openmmlab() -> None:
    code = (
        'import sys, mmspatial.datasets; '
        'heavy = {"torch", "mmengine", "mmcv", "mmseg", "mmdet"} & set(sys.modules); '
        'assert not heavy, heavy'
    )
    subprocess.run([sys.executable, '-c', code], check=True)


def test_a_shadow_darkens_the_picture_only(canvas: Canvas) -> None:
    canvas.rgb[:] = 200
    canvas.shadow((2.5, 3.0), 0.8, 0.8)
    assert set(np.unique(canvas.rgb)) == {100, 200}
    assert not canvas.ids.any()
