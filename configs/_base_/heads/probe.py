# LocAtViT's probe: one hidden layer on the last output of a frozen backbone.
_base_ = 'linear.py'
model = dict(decode_head=dict(type='mmspatial.MLPHead', channels=512))
