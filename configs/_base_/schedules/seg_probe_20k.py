# One cycle: up in a quarter of the iterations, from 1e-4 of the rate, and down to 1e-8 of it.
# In two pieces, since MMEngine's OneCycleLR has a rate of its own, which would overrule both the
# optimizer's and --auto-scale-lr.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=20000, val_interval=4000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
# Decay on everything that trains, as the paper has it; the backbone does not.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.01),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-4, by_epoch=False, begin=0, end=5000),
    dict(type='LinearLR', start_factor=1.0, end_factor=1e-8, by_epoch=False, begin=5000, end=20000),
]
# 8 GPUs with 4 images each, which is also what the rate above is meant for.
auto_scale_lr = dict(enable=False, base_batch_size=32)
