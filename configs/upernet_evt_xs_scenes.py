_base_ = [
    '_base_/backbones/evt_xs.py',
    '_base_/heads/upernet_small.py',
    '_base_/datasets/scenes_ade20k.py',
    '_base_/schedules/seg_scenes.py',
]
model = dict(
    data_preprocessor=_base_.data_preprocessor,
    backbone=_base_.backbone,
    decode_head=dict(in_channels=_base_.channels, num_classes=_base_.num_classes),
    auxiliary_head=dict(in_channels=_base_.channels[2], num_classes=_base_.num_classes),
)
