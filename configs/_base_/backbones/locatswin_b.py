backbone = dict(type='mmspatial.LocAtSwin', arch='base')
channels = [128, 256, 512, 1024]
