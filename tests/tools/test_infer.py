"""`tools/infer.py` and `tools/show_results.py`, with tiny models that were not trained."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from mmspatial.apis import UserError
from mmspatial.apis.configs import read_config, set_data_root
from mmspatial.apis.fuse import fuse
from mmspatial.apis.images import read_image
from mmspatial.apis.inference import find_classes, load_model, predict
from mmspatial.apis.pictures import Instances
from mmspatial.apis.show_results import read_truth
from mmspatial.datasets import write_ade20k, write_coco

ROOT = Path(__file__).parents[2]
LEAVES = {'seg': 'semfpn_evt_t_ade20k', 'det': 'maskrcnn_evt_t_coco_1x'}
KINDS = pytest.mark.parametrize('kind', ['seg', 'det'])


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f'tool_{name}', ROOT / 'tools' / f'{name}.py')
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class World:
    """Scenes, tiny configs and checkpoints of both toolboxes in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_ade20k(folder / 'scenes_seg', 1, 3, (48, 56), 0, True)
        write_coco(folder / 'scenes_det', 1, 3, (64, 80), 0, True)
        for kind, leaf in LEAVES.items():
            self.config(kind).write_text(
                f"_base_ = ['{ROOT}/configs/{leaf}.py']\n"
                'arch = dict(embed_dims=(8, 8, 8, 8), depths=1, num_heads=2, _delete_=True)\n'
                'model = dict(backbone=dict(arch=arch), neck=dict(in_channels=[8, 8, 8, 8]))\n'
                'test_pipeline = _base_.test_pipeline\n'
                "test_pipeline[1]['scale'] = (128, 64)\n"
                'test_dataloader = dict(dataset=dict(pipeline=test_pipeline))\n'
            )
            torch.manual_seed(0)
            cfg = self.read(kind)
            init_default_scope(cfg.default_scope)
            state = MODELS.build(cfg.model).state_dict()
            torch.save({'state_dict': state}, self.checkpoint(kind))

    def config(self, kind: str) -> Path:
        return self.folder / f'{kind}.py'

    def checkpoint(self, kind: str) -> Path:
        return self.folder / f'{kind}.pth'

    def scenes(self, kind: str) -> Path:
        return self.folder / f'scenes_{kind}'

    def read(self, kind: str) -> Config:
        cfg = read_config(str(self.config(kind)))
        set_data_root(cfg, str(self.scenes(kind)))
        return cfg

    def run(self, name: str, kind: str, *words: object) -> None:
        model = self.config(kind), self.checkpoint(kind)
        _tool(name).main([str(word) for word in (*model, *words)])


@pytest.fixture(scope='module')
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp('world'))


@KINDS
@pytest.mark.smoke
def test_truth_is_that_of_the_annotation_files(world: World, kind: str) -> None:
    root = world.scenes(kind)
    samples = list(read_truth(world.read(kind), 2))
    assert len(samples) == 2
    for path, image, truth in samples:
        np.testing.assert_array_equal(image, read_image(path))
        if kind == 'seg':
            labels = np.array(Image.open(root / 'annotations/validation' / f'{path.stem}.png'))
            # ADE20K's 0 becomes 255, wrapping around.
            np.testing.assert_array_equal(truth, labels - np.uint8(1))
            continue
        content = json.loads((root / 'annotations/instances_val2017.json').read_text())
        (number,) = (i['id'] for i in content['images'] if i['file_name'] == path.name)
        things = [a for a in content['annotations'] if a['image_id'] == number]
        assert isinstance(truth, Instances)
        assert truth.crowd is not None
        assert truth.masks is not None
        assert truth.crowd.sum() == sum(a['iscrowd'] for a in things)
        boxes = sorted([x, y, x + w, y + h] for x, y, w, h in (a['bbox'] for a in things))
        np.testing.assert_allclose(sorted(truth.boxes.tolist()), boxes, atol=1e-3)
        areas = sorted(a['area'] for a in things)
        np.testing.assert_allclose(sorted(truth.masks.sum((1, 2))), areas, rtol=0.25, atol=25)


@KINDS
@pytest.mark.smoke
def test_prediction_equals_that_of_the_host(world: World, kind: str) -> None:
    predictor = load_model(world.read(kind), str(world.checkpoint(kind)))
    image = np.random.default_rng(0).integers(0, 256, (37, 53, 3), np.uint8)
    ours = predict(predictor, image)
    if kind == 'seg':
        from mmseg.apis import inference_model

        predictor.model.cfg = world.read(kind)
        theirs = inference_model(predictor.model, image[..., ::-1].copy())
        assert isinstance(ours, np.ndarray)
        np.testing.assert_array_equal(ours, theirs.pred_sem_seg.data[0].numpy())
        assert ours.shape == (37, 53)
    else:
        from mmdet.apis import inference_detector

        theirs = inference_detector(predictor.model, image[..., ::-1].copy()).pred_instances
        assert isinstance(ours, Instances)
        assert ours.scores is not None
        assert ours.masks is not None
        assert ours.masks.shape[1:] == (37, 53)
        assert (np.diff(ours.scores) <= 0).all()
        order = np.argsort(-theirs.scores.numpy(), kind='stable')
        np.testing.assert_allclose(ours.boxes, theirs.bboxes.numpy()[order])
        np.testing.assert_array_equal(ours.masks, theirs.masks.numpy()[order])
        fused = predict(dataclasses.replace(predictor, model=fuse(predictor.model)), image)
        np.testing.assert_allclose(fused.boxes, ours.boxes, atol=1e-3)
        np.testing.assert_array_equal(fused.labels, ours.labels)


@pytest.mark.parametrize(
    ('size', 'window', 'seen'),
    [((37, 53), 128, [(64, 92)]), ((20, 80), 64, [(32, 64)] * 3)],
    ids=['smaller', 'flatter'],
)
def test_windows_larger_than_the_image(
    world: World,
    size: tuple[int, int],
    window: int,
    seen: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pipeline makes them 64 x 92 and 32 x 128; windows are cut to that."""
    cfg = world.read('seg')
    cfg.model.test_cfg = dict(mode='slide', crop_size=(window, window), stride=(40, 40))
    predictor = load_model(cfg, str(world.checkpoint('seg')))
    encode_decode, shapes = predictor.model.encode_decode, []

    def look(inputs: torch.Tensor, metas: list[dict[str, object]]) -> torch.Tensor:
        shapes.append(tuple(inputs.shape[2:]))
        return encode_decode(inputs, metas)

    monkeypatch.setattr(predictor.model, 'encode_decode', look)
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    found = predict(predictor, image)
    assert shapes == seen
    assert found.shape == size
    predictor.model.test_cfg.mode = 'whole'
    assert (found == predict(predictor, image)).all() == (len(seen) == 1)


@KINDS
def test_names_and_colours(world: World, kind: str) -> None:
    dataset = world.read(kind).test_dataloader.dataset
    names, palette = find_classes({}, dataset)
    assert (len(names), len(palette)) == ((150, 150) if kind == 'seg' else (80, 80))
    assert names[12 if kind == 'seg' else 0] == 'person'
    if kind == 'seg':
        assert palette[12] == (150, 5, 61)
    meta = {'dataset_meta': {'classes': ('a', 'b')}}
    names, palette = find_classes(meta, dataset)
    assert names == ['a', 'b']
    assert len(set(palette)) == 2


@KINDS
def test_images_of_any_size_and_kind(world: World, kind: str, tmp_path: Path) -> None:
    inputs = tmp_path / 'in'
    inputs.mkdir()
    rng = np.random.default_rng(0)
    shapes = {'dot': (1, 1), 'odd': (53, 77), 'line': (1, 9), 'grey': (20, 30), 'alpha': (9, 9, 4)}
    for name, shape in shapes.items():
        full = shape if name in ('grey', 'alpha') else (*shape, 3)
        Image.fromarray(rng.integers(0, 256, full, np.uint8)).save(inputs / f'{name}.png')
    out = tmp_path / 'out'
    world.run('infer', kind, inputs, '--out-dir', out, '--device', 'cpu', '--score-thr', 0)
    assert {path.stem for path in out.iterdir()} == set(shapes)
    # Small ones are enlarged, and the paper has a margin.
    assert min(read_image(out / 'odd.png').shape[:2]) > 256


def test_opacity_reaches_the_picture(world: World, tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    Image.fromarray(image).save(tmp_path / 'x.png')
    predictor = load_model(world.read('seg'), str(world.checkpoint('seg')))
    labels = predict(predictor, image)
    for opacity, inside in ((0, image), (1, np.array(predictor.classes.palette)[labels])):
        out = tmp_path / str(opacity)
        words = ('--out-dir', out, '--opacity', opacity, '--fuse')
        world.run('infer', 'seg', tmp_path / 'x.png', *words)
        paper = read_image(out / 'x.png')
        left = (paper.shape[1] - 256) // 2
        np.testing.assert_array_equal(paper[left : left + 256, left : left + 256], inside)


def test_a_broken_image_does_not_lose_the_others(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'a.png').write_text('no image')
    Image.new('RGB', (9, 9)).save(tmp_path / 'b.png')
    words = [tmp_path / 'a.png', tmp_path / 'b.png', tmp_path / 'c.png']
    with pytest.raises(SystemExit) as stop:
        world.run('infer', 'seg', *words, '--out-dir', tmp_path / 'out')
    assert stop.value.code == 2
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['b.png']
    error = capsys.readouterr().err
    assert '1 of 3 images were drawn' in error
    assert f"'{tmp_path}/a.png' is no image" in error
    assert f"'{tmp_path}/c.png' does not exist" in error


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['{ok}', '--device', 'cuda:99'], 'use --device cpu'),
        (['{ok}', '--device', 'toaster'], 'use cpu, cuda or cuda:N'),
        (['nowhere.png'], "'nowhere.png' does not exist"),
        (['{ok}', '--backbone', 'evt_x'], "no backbone 'evt_x'"),
        (['{ok}', '--backbone', 'rmt_t'], 'is of another model'),
    ],
)
def test_mistakes_get_one_message(
    world: World, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    Image.new('RGB', (9, 9)).save(world.folder / 'ok.png')
    with pytest.raises(SystemExit) as stop:
        world.run('infer', 'seg', *(word.format(ok=world.folder / 'ok.png') for word in words),
                  '--out-dir', world.folder / 'none')  # fmt: skip
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count('error:') == 1
    assert not (world.folder / 'none').exists()


@KINDS
@pytest.mark.smoke
def test_results_and_overview(
    world: World, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ('--data-root', world.scenes(kind), '--num', 2, '--out-dir', tmp_path)
    world.run('show_results', kind, *words, '--device', 'cpu')
    panels = sorted(path for path in tmp_path.iterdir() if path.name != 'overview.png')
    assert len(panels) == 2
    overview = read_image(tmp_path / 'overview.png')
    for panel in panels:
        picture = read_image(panel)
        assert picture.shape[1] > picture.shape[0]
        assert overview.shape[0] > picture.shape[0]
    assert str(tmp_path / 'overview.png') in capsys.readouterr().out


def test_missing_scenes_are_explained(world: World, tmp_path: Path) -> None:
    from mmspatial.apis.picture_options import parse_show_args
    from mmspatial.apis.show_results import show_results

    words = [world.config('seg'), world.checkpoint('seg'), '--data-root', tmp_path / 'none']
    with pytest.raises(UserError, match=r'ADEChallengeData2016\.zip'):
        show_results(parse_show_args([str(word) for word in words]))
