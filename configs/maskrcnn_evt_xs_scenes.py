_base_ = [
    '_base_/backbones/evt_xs.py',
    '_base_/heads/maskrcnn_small.py',
    '_base_/datasets/scenes_coco.py',
    '_base_/schedules/det_scenes.py',
]
model = dict(
    data_preprocessor=_base_.data_preprocessor,
    backbone=_base_.backbone,
    neck=dict(in_channels=_base_.channels),
)
