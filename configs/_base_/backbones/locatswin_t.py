backbone = dict(type='mmspatial.LocAtSwin', arch='tiny')
channels = [96, 192, 384, 768]
