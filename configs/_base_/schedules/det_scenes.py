# From scratch in minutes on a CPU.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=8, val_interval=8)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=8e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=dict(pos_embed=dict(decay_mult=0.0))),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.02, by_epoch=False, begin=0, end=50),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=8, milestones=[6, 7], gamma=0.3),
]
auto_scale_lr = dict(enable=False, base_batch_size=4)
