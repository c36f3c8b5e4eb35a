# Not one of the paper's: small enough to train from scratch on a CPU within minutes.
backbone = dict(
    type='mmspatial.EVT',
    arch=dict(embed_dims=[32, 64, 128, 256], depths=[2, 2, 4, 2], num_heads=[2, 2, 4, 8]),
    drop_path_rate=0.0,
)
channels = [32, 64, 128, 256]
