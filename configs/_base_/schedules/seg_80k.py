_base_ = 'adamw.py'
train_cfg = dict(type='IterBasedTrainLoop', max_iters=80000, val_interval=8000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(optimizer=dict(lr=1e-4, weight_decay=1e-4))
param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=1e-6, by_epoch=False, begin=0, end=80000)]
# 8 GPUs with 2 images each, which is also what the rate above is meant for.
auto_scale_lr = dict(enable=False, base_batch_size=16)
