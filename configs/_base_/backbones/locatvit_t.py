backbone = dict(type='mmspatial.LocAtViT', arch='tiny', out_indices=[2, 5, 8, 11])
channels = [192, 192, 192, 192]
