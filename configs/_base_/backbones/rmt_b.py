backbone = dict(type='mmspatial.RMT', arch='base')
channels = [80, 160, 320, 512]
