# COCO for long schedules: half of the images are resized once, the others cropped in between.
_base_ = 'coco.py'
resize = dict(
    type='RandomChoiceResize',
    scales=[(1333, short) for short in range(480, 801, 32)],
    keep_ratio=True,
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[
            [resize],
            [
                dict(
                    type='RandomChoiceResize',
                    scales=[(1333, 400), (1333, 500), (1333, 600)],
                    keep_ratio=True,
                ),
                dict(
                    type='RandomCrop',
                    crop_type='absolute_range',
                    crop_size=(384, 600),
                    allow_negative_crop=True,
                ),
                resize,
            ],
        ],
    ),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
