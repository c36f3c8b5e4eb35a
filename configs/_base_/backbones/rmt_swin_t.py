backbone = dict(type='mmspatial.RMT', arch='swin_tiny')
channels = [96, 192, 384, 768]
