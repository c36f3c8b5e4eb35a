_base_ = [
    '_base_/backbones/evt_b.py',
    '_base_/heads/maskrcnn.py',
    '_base_/datasets/coco_multiscale.py',
    '_base_/schedules/det_3x.py',
]
model = dict(
    data_preprocessor=_base_.data_preprocessor,
    backbone=_base_.backbone,
    neck=dict(in_channels=_base_.channels),
)
