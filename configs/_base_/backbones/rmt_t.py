backbone = dict(type='mmspatial.RMT', arch='tiny')
channels = [64, 128, 256, 512]
