"""Configs that inherit from the shipped ones and run in seconds, and a way to run the tools."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from mmdet.visualization import DetLocalVisualizer
from mmengine.logging import MMLogger
from mmseg.visualization import SegLocalVisualizer

from mmspatial.apis.configs import config_folder

TOOLS = Path(__file__).resolve().parents[2] / 'tools'

_BACKBONE = """dict(
        _delete_=True,
        type='mmspatial.EVT',
        drop_path_rate=0.0,
        arch=dict(
            embed_dims=(16, 16, 32, 32), depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)
        ),
    )"""

_SEG = """
size = (64, 64)
load = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=size, keep_ratio=False)]
pipeline = [load[0], dict(type='LoadAnnotations'), load[1], dict(type='PackSegInputs')]
test_pipeline = [*load, dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
flips = [dict(type='RandomFlip', prob=p, direction='horizontal') for p in (0.0, 1.0)]
steps = [[load[1]], flips, [dict(type='LoadAnnotations')], [dict(type='PackSegInputs')]]
tta_pipeline = [load[0], dict(type='TestTimeAug', transforms=steps)]
model = dict(
    data_preprocessor=dict(size=size),
    backbone=BACKBONE,
    decode_head=dict(channels=16, in_channels=[16, 16, 32, 32]),
    auxiliary_head=dict(channels=8, in_channels=32),
)
train_cfg = dict(max_iters=4, val_interval=4)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=2))
"""

_DET = """
load = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=(128, 96), keep_ratio=True),
]
pipeline = [*load, dict(type='PackDetInputs')]
keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
test_pipeline = [*load, dict(type='PackDetInputs', meta_keys=keys)]
model = dict(
    backbone=BACKBONE,
    neck=dict(in_channels=[16, 16, 32, 32], out_channels=16),
    rpn_head=dict(in_channels=16, feat_channels=16),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=16),
        bbox_head=dict(in_channels=16, fc_out_channels=16),
        mask_roi_extractor=dict(out_channels=16),
        mask_head=dict(in_channels=16, conv_out_channels=16),
    ),
    train_cfg=dict(rpn_proposal=dict(nms_pre=50, max_per_img=20)),
    test_cfg=dict(rpn=dict(nms_pre=50, max_per_img=10), rcnn=dict(score_thr=0.0, max_per_img=3)),
)
train_cfg = dict(max_epochs=2)
default_hooks = dict(logger=dict(interval=1))
"""

_LOADERS = """
train_dataloader = dict(
    num_workers=0, persistent_workers=False, dataset=dict(pipeline=pipeline)
)
val_dataloader = dict(
    num_workers=0, persistent_workers=False, dataset=dict(pipeline=test_pipeline)
)
test_dataloader = val_dataloader
"""


def write_config(folder: Path, kind: str) -> str:
    """Write a config without random augmentation or drop path; `kind` is 'seg' or 'det'."""
    base = {'seg': 'upernet_evt_s_ade20k', 'det': 'maskrcnn_evt_t_coco_1x'}[kind]
    body = {'seg': _SEG, 'det': _DET}[kind].replace('BACKBONE', _BACKBONE)
    file = folder / f'tiny_{kind}.py'
    file.write_text(f"_base_ = ['{config_folder() / base}.py']\n{body}{_LOADERS}")
    return str(file)


def forget_runs() -> None:
    """Forget what MMEngine keeps of the runs in this process."""
    # One visualizer per name, which would go on writing into the first work dir, and one logger
    # per config and second, with the output that pytest has closed since.
    for cls in (SegLocalVisualizer, DetLocalVisualizer, MMLogger):
        cls._instance_dict.clear()


def run_tool(name: str, *argv: object) -> None:
    """Run `tools/<name>.py` in this process."""
    forget_runs()
    spec = importlib.util.spec_from_file_location(f'tool_{name}', TOOLS / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main([str(word) for word in argv])


def losses(work_dir: Path) -> dict[int, float]:
    """Read the losses that runs in a work dir have logged, by iteration."""
    found = {}
    for file in sorted(work_dir.glob('*/vis_data/scalars.json')):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if 'loss' in record:
                found[record['step']] = record['loss']
    return found
