_base_ = [
    '_base_/backbones/evt_swin_s.py',
    '_base_/heads/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/seg_160k.py',
]
model = dict(
    data_preprocessor=_base_.data_preprocessor,
    backbone=_base_.backbone,
    decode_head=dict(in_channels=_base_.channels, num_classes=_base_.num_classes),
    auxiliary_head=dict(in_channels=_base_.channels[2], num_classes=_base_.num_classes),
)
