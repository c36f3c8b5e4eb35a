backbone = dict(type='mmspatial.EVT', arch='swin_small')
channels = [96, 192, 384, 768]
