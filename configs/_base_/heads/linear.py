# The strict linear probe: what one linear map can read from the last output of a frozen backbone.
_base_ = '../runtime_seg.py'
model = dict(
    type='EncoderDecoder',
    _scope_='mmseg',
    backbone=dict(frozen_stages='all'),
    decode_head=dict(
        type='mmspatial.LinearHead',
        in_index=-1,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg={},
    test_cfg=dict(mode='whole'),
)
default_hooks = dict(checkpoint=dict(interval=4000))
