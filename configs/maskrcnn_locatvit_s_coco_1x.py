_base_ = [
    '_base_/backbones/locatvit_s.py',
    '_base_/heads/maskrcnn_vit.py',
    '_base_/datasets/coco.py',
    '_base_/schedules/det_1x.py',
]
model = dict(
    data_preprocessor=_base_.data_preprocessor,
    backbone=_base_.backbone,
    neck=dict(in_channels=_base_.channels),
)
