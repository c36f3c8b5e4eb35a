backbone = dict(type='mmspatial.RMT', arch='large')
channels = [112, 224, 448, 640]
