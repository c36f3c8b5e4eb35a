backbone = dict(type='mmspatial.SDT', arch='small')
channels = [64, 128, 256, 512]
