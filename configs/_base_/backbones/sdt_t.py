backbone = dict(type='mmspatial.SDT', arch='tiny')
channels = [64, 128, 256, 512]
