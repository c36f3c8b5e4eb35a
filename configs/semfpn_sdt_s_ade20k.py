_base_ = [
    '_base_/backbones/sdt_s.py',
    '_base_/heads/semfpn.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/seg_80k.py',
]
model = dict(
    data_preprocessor=_base_.data_preprocessor,
    backbone=_base_.backbone,
    neck=dict(in_channels=_base_.channels),
    decode_head=dict(num_classes=_base_.num_classes),
)
