# UperNet narrow enough to train on a CPU, with a log that suits a short training.
_base_ = 'upernet.py'
model = dict(decode_head=dict(channels=96), auxiliary_head=dict(channels=64))
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=130))
