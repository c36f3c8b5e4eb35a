backbone = dict(type='mmspatial.EVT', arch='swin_base')
channels = [128, 256, 512, 1024]
