backbone = dict(type='mmspatial.EVT', arch='small')
channels = [64, 128, 256, 512]
