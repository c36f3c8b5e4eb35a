backbone = dict(type='mmspatial.RMT', arch='swin_small')
channels = [96, 192, 384, 768]
