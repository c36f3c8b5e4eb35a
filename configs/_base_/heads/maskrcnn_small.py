# Mask R-CNN narrow enough to train on a CPU, for the eight classes of the scenes,
# with a log that suits a short training.
_base_ = 'maskrcnn.py'
model = dict(
    neck=dict(out_channels=64),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(scales=[4], strides=[4, 8, 16, 32, 64]),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64, finest_scale=28, roi_layer=dict(sampling_ratio=2)),
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=8),
        mask_roi_extractor=dict(out_channels=64, finest_scale=28, roi_layer=dict(sampling_ratio=2)),
        mask_head=dict(in_channels=64, conv_out_channels=64, num_convs=2, num_classes=8),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=400, max_per_img=200),
        rcnn=dict(sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=400, max_per_img=150), rcnn=dict(max_per_img=50)),
)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(max_keep_ckpts=1))
