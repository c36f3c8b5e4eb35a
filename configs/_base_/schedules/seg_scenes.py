# From scratch in minutes on a CPU.
_base_ = 'adamw.py'
train_cfg = dict(type='IterBasedTrainLoop', max_iters=600, val_interval=600)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(optimizer=dict(lr=1.5e-3, weight_decay=0.01), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=False, begin=0, end=20),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=20, end=600),
]
auto_scale_lr = dict(enable=False, base_batch_size=8)
