# Pascal Context without its background: 59 classes.
_base_ = 'ade20k.py'
num_classes = 59
crop_size = (480, 480)
data_root = 'data/VOCdevkit/VOC2010'
data_preprocessor = dict(size=crop_size)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(520, 520), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(520, 520), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
tta_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(
        type='TestTimeAug',
        _scope_='mmseg',
        transforms=[
            [
                dict(type='Resize', scale=(size, size), keep_ratio=True)
                for size in (260, 390, 520, 650, 780, 910)
            ],
            [
                dict(type='RandomFlip', prob=0.0, direction='horizontal'),
                dict(type='RandomFlip', prob=1.0, direction='horizontal'),
            ],
            [dict(type='LoadAnnotations')],
            [dict(type='PackSegInputs')],
        ],
    ),
]
data_prefix = dict(img_path='JPEGImages', seg_map_path='SegmentationClassContext')
train_dataloader = dict(
    dataset=dict(
        type='PascalContextDataset59',
        data_root=data_root,
        data_prefix=data_prefix,
        ann_file='ImageSets/SegmentationContext/train.txt',
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        type='PascalContextDataset59',
        data_root=data_root,
        data_prefix=data_prefix,
        ann_file='ImageSets/SegmentationContext/val.txt',
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
