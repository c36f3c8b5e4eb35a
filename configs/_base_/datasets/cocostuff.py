# COCO-Stuff 164k, with the pipelines of ADE20K.
_base_ = 'ade20k.py'
num_classes = 171
data_root = 'data/coco_stuff164k'
train_dataloader = dict(
    dataset=dict(
        type='COCOStuffDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/train2017', seg_map_path='annotations/train2017'),
    )
)
val_dataloader = dict(
    dataset=dict(
        type='COCOStuffDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/val2017', seg_map_path='annotations/val2017'),
    )
)
test_dataloader = val_dataloader
