backbone = dict(type='mmspatial.SDT', arch='deit_base', out_indices=[2, 5, 8, 11])
channels = [768, 768, 768, 768]
