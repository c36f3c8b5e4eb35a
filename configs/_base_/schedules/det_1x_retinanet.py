_base_ = 'det_1x.py'
optim_wrapper = dict(optimizer=dict(weight_decay=1e-4))
