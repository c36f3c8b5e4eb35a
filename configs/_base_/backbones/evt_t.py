backbone = dict(type='mmspatial.EVT', arch='tiny')
channels = [64, 128, 256, 512]
