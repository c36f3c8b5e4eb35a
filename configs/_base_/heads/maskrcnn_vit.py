# Mask R-CNN for a plain ViT, whose four maps of one size become a pyramid first.
_base_ = 'maskrcnn.py'
model = dict(neck=dict(type='mmspatial.SimpleFeaturePyramid'))
