_base_ = [
    '_base_/backbones/evt_swin_b.py',
    '_base_/heads/linear.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/seg_probe_20k.py',
]
train_dataloader = dict(batch_size=4)
model = dict(
    data_preprocessor=_base_.data_preprocessor,
    backbone=_base_.backbone,
    decode_head=dict(in_channels=_base_.channels[-1], num_classes=_base_.num_classes),
)
