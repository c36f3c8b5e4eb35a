backbone = dict(type='mmspatial.SDT', arch='deit_tiny', out_indices=[2, 5, 8, 11])
channels = [192, 192, 192, 192]
