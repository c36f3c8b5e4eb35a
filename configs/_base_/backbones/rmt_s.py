backbone = dict(type='mmspatial.RMT', arch='small')
channels = [64, 128, 256, 512]
