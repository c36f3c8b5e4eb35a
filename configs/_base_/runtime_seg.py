# `_scope_` is written out wherever a type belongs to the host, so that a config which inherits
# from `mmspatial::...` (whose types MMEngine would look up in mmspatial's scope) builds as well.
default_scope = 'mmseg'
custom_imports = dict(imports=['mmspatial'], allow_failed_imports=False)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
# Every batch norm, the backbone's too, becomes synchronised when training is distributed.
sync_bn = 'torch'
find_unused_parameters = False
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='CheckpointHook', by_epoch=False, interval=16000, max_keep_ckpts=3, save_best='mIoU'
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook', _scope_='mmseg'),
)
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(
    type='SegLocalVisualizer', _scope_='mmseg', vis_backends=vis_backends, name='visualizer'
)
log_processor = dict(by_epoch=False)
log_level = 'INFO'
load_from = None
resume = False
tta_model = dict(type='SegTTAModel', _scope_='mmseg')
