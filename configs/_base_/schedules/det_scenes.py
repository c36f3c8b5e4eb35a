# From scratch in minutes on a CPU.
_base_ = 'adamw.py'
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=5, val_interval=5)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(optimizer=dict(lr=8e-4, weight_decay=0.05), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.02, by_epoch=False, begin=0, end=50),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=5, milestones=[4], gamma=0.2),
]
auto_scale_lr = dict(enable=False, base_batch_size=4)
