backbone = dict(type='mmspatial.EVT', arch='base')
channels = [80, 160, 320, 512]
