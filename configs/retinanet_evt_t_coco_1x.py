_base_ = [
    '_base_/backbones/evt_t.py',
    '_base_/heads/retinanet.py',
    '_base_/datasets/coco_boxes.py',
    '_base_/schedules/det_1x_retinanet.py',
]
model = dict(
    data_preprocessor=_base_.data_preprocessor,
    backbone=_base_.backbone,
    neck=dict(in_channels=_base_.channels[1:]),
)
