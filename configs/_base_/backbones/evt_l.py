backbone = dict(type='mmspatial.EVT', arch='large')
channels = [112, 224, 448, 640]
