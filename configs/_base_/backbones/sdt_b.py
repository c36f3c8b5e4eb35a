backbone = dict(type='mmspatial.SDT', arch='base')
channels = [80, 160, 320, 512]
