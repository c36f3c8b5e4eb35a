# UperNet for a plain ViT, whose four maps of one size become a pyramid first.
_base_ = 'upernet.py'
model = dict(
    neck=dict(type='mmspatial.SimpleFeaturePyramid', out_channels=256),
    decode_head=dict(in_channels=[256, 256, 256, 256]),
    auxiliary_head=dict(in_channels=256),
)
