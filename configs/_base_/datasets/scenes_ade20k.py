# The built-in scenes (tools/make_scenes.py) through ADE20K's dataset class, at a size for CPUs.
_base_ = 'ade20k.py'
# mmseg maps ADE20K's 150 labels to these and reports their mean only.
classes = (
    'building', 'sky', 'tree', 'road', 'grass', 'sidewalk', 'person', 'mountain', 'car', 'fence',
    'signboard', 'bench', 'bus', 'streetlight', 'animal', 'traffic light',
)  # fmt: skip
num_classes = 16
crop_size = (96, 128)
data_root = 'data/scenes/ade20k'
data_preprocessor = dict(size=crop_size)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
metainfo = dict(classes=classes)
train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=train_pipeline),
)
val_dataloader = dict(
    num_workers=2, dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline)
)
test_dataloader = val_dataloader
