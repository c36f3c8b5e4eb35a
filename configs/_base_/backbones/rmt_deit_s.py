backbone = dict(type='mmspatial.RMT', arch='deit_small', out_indices=[2, 5, 8, 11])
channels = [384, 384, 384, 384]
