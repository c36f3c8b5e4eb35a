"""mmseg's and mmdet's own data sets, pipelines and metrics read the scenes unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mmspatial.apis.configs import read_config
from mmspatial.apis.data import check_data, set_data_root
from mmspatial.datasets import SCENE_CATEGORIES, SCENE_CLASSES, WRITERS, write_ade20k, write_coco
from mmspatial.datasets.scenes.classes import COCOSTUFF_LABELS, PASCAL59_LABELS

SIZE = (96, 128)


@pytest.mark.smoke
def test_mmseg(tmp_path: Path) -> None:
    mmseg = pytest.importorskip('mmseg')
    from mmseg.datasets import ADE20KDataset
    from mmseg.evaluation import IoUMetric

    assert mmseg
    names = [name.strip() for name in ADE20KDataset.METAINFO['classes']]
    assert {name: names.index(name) + 1 for name in SCENE_CLASSES} == SCENE_CLASSES

    write_ade20k(tmp_path, 1, 12, SIZE)
    data = ADE20KDataset(
        data_root=str(tmp_path),
        data_prefix={'img_path': 'images/validation', 'seg_map_path': 'annotations/validation'},
        pipeline=[
            {'type': 'LoadImageFromFile'},
            {'type': 'mmseg.LoadAnnotations', 'reduce_zero_label': True},
            {'type': 'mmseg.PackSegInputs'},
        ],
        test_mode=True,
    )
    assert len(data) == 12
    metric = IoUMetric(iou_metrics=['mIoU'])
    metric.dataset_meta = data.metainfo
    present: set[int] = set()
    for item in data:
        sample = item['data_samples']
        truth = sample.gt_sem_seg.data
        assert item['inputs'].shape[1:] == truth.shape[1:]
        present |= set(truth.unique().tolist()) - {255}
        # Unlabelled pixels are ignored, whatever is predicted there.
        prediction = torch.where(truth == 255, 0, truth)
        metric.process({}, [{'pred_sem_seg': {'data': prediction},
                             'gt_sem_seg': {'data': truth}}])  # fmt: skip
    assert {number + 1 for number in present} <= set(SCENE_CLASSES.values())
    assert len(present) > 10
    result = metric.compute_metrics(metric.results)
    assert result['mIoU'] == result['aAcc'] == 100


@pytest.mark.parametrize(
    ('layout', 'labels', 'first'),
    [('pascal59', PASCAL59_LABELS, 1), ('cocostuff', COCOSTUFF_LABELS, 0)],
)
def test_other_layouts_of_mmseg(
    tmp_path: Path, layout: str, labels: dict[str, tuple[str, int]], first: int
) -> None:
    """The shipped configs read them, and show the same classes as ADE20K's labels do."""
    from mmseg.registry import DATASETS

    for name in (layout, 'ade20k'):
        assert WRITERS[name](tmp_path / name, 1, 3, SIZE)
        assert not WRITERS[name](tmp_path / name, 1, 3, SIZE)
    cfg = read_config(f'probe_vit_t_{layout}')
    set_data_root(cfg, str(tmp_path / layout))
    check_data(cfg, ('train', 'val', 'test'))
    assert len(DATASETS.build(cfg.train_dataloader.dataset)) == 1

    load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
    dataset = cfg.val_dataloader.dataset
    dataset.pipeline = [*load, dict(type='PackSegInputs')]
    theirs = DATASETS.build(dataset)
    names = theirs.metainfo['classes']
    assert len(names) == cfg.num_classes == cfg.model.decode_head.num_classes
    assert {key: (names[number - first], number) for key, (_, number) in labels.items()} == labels
    dataset.update(
        type='ADE20KDataset', data_root=str(tmp_path / 'ade20k'), ann_file='',
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
    )  # fmt: skip
    ade = DATASETS.build(dataset)
    assert len(theirs) == len(ade) == 3
    table = torch.full((256,), 255)
    for key, number in SCENE_CLASSES.items():
        table[number - 1] = labels[key][1] - first
    for ours, other in zip(ade, theirs, strict=True):
        assert torch.equal(ours['inputs'], other['inputs'])
        truth, expected = (item['data_samples'].gt_sem_seg.data for item in (other, ours))
        assert torch.equal(truth.long(), table[expected.long()])


@pytest.mark.smoke
def test_mmdet(tmp_path: Path) -> None:
    pytest.importorskip('mmdet')
    from mmdet.datasets import CocoDataset
    from mmdet.evaluation import CocoMetric
    from mmdet.structures.mask import encode_mask_results

    write_coco(tmp_path, 1, 30, SIZE)
    annotations = 'annotations/instances_val2017.json'
    data = CocoDataset(
        data_root=str(tmp_path),
        ann_file=annotations,
        data_prefix={'img': 'val2017/'},
        pipeline=[
            {'type': 'LoadImageFromFile'},
            {'type': 'mmdet.LoadAnnotations', 'with_bbox': True, 'with_mask': True},
            {'type': 'mmdet.PackDetInputs'},
        ],
        test_mode=True,
    )
    assert len(data) == 30
    assert len(data.cat_ids) == 80
    metric = CocoMetric(
        ann_file=str(tmp_path / annotations), metric=['bbox', 'segm'], format_only=False
    )
    metric.dataset_meta = data.metainfo
    crowds, labels = 0, set()
    for item in data:
        sample = item['data_samples']
        crowds += len(sample.ignored_instances.bboxes)
        truth = sample.gt_instances
        labels |= set(truth.labels.tolist())
        prediction = {
            'bboxes': truth.bboxes.tensor,
            'labels': truth.labels,
            'scores': torch.ones(len(truth.labels)),
            'masks': encode_mask_results(truth.masks.masks.astype(bool)),
        }
        metric.process({}, [{'img_id': sample.img_id, 'ori_shape': sample.ori_shape,
                             'pred_instances': prediction}])  # fmt: skip
    assert crowds > 0
    assert {data.metainfo['classes'][label] for label in labels} == set(SCENE_CATEGORIES)
    result = metric.compute_metrics(metric.results)
    assert result['bbox_mAP'] == pytest.approx(1, abs=1e-6)
    assert result['segm_mAP'] == pytest.approx(1, abs=1e-6)
    assert np.isfinite(result['bbox_mAP_50'])
