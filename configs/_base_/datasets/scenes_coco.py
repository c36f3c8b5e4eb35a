# The built-in scenes (tools/make_scenes.py) through COCO's dataset class, at a size for CPUs.
_base_ = 'coco.py'
data_root = 'data/scenes/coco/'
# Of COCO's 80 classes those that the scenes show; CocoDataset drops the others.
classes = (
    'person', 'car', 'bus', 'traffic light', 'stop sign', 'bench', 'dog', 'kite',
)  # fmt: skip
metainfo = dict(classes=classes)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=(320, 192), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(320, 192), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        filter_cfg=dict(filter_empty_gt=True, min_size=8),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    num_workers=2, dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline)
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator
