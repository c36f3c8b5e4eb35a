backbone = dict(type='mmspatial.EVT', arch='deit_tiny', out_indices=[2, 5, 8, 11])
channels = [192, 192, 192, 192]
