backbone = dict(type='mmspatial.EVT', arch='swin_tiny')
channels = [96, 192, 384, 768]
