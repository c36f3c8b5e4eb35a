"""The plain ViT is timm's, and LocAtViT's without what that paper adds."""

from __future__ import annotations

import pytest
import timm
import torch
from golden import randomise, relative_error, silence
from timm.models.vision_transformer import VisionTransformer

from mmspatial import build_backbone, load_weights

SMALL = dict(img_size=64, patch_size=16, embed_dims=48, depth=3, num_heads=3)


@pytest.mark.parametrize('size', ['tiny', 'small', 'base'])
def test_parameters_are_timms(size: str) -> None:
    with torch.device('meta'):
        model = build_backbone('ViT', arch=size, num_classes=1000)
        theirs = timm.create_model(f'vit_{size}_patch16_224', num_classes=1000)
        locat = build_backbone('LocAtViT', arch=size, num_classes=1000)
    count, expected, more = (sum(p.numel() for p in m.parameters()) for m in (model, theirs, locat))
    assert count == expected == more - 2340


def test_timm_weights_give_timms_outputs() -> None:
    theirs = VisionTransformer(
        img_size=64, embed_dim=48, depth=3, num_heads=3, num_classes=5, reg_tokens=2
    ).eval()
    randomise(theirs)
    ours = build_backbone(
        'ViT', arch=dict(SMALL, num_registers=2), num_classes=5, out_indices=(1, 2)
    ).eval()
    assert load_weights(ours, theirs.state_dict()).fraction == 1
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert relative_error(ours(x), theirs(x)) < 1e-5
        maps = theirs.forward_intermediates(x, indices=[1, 2], intermediates_only=True, norm=False)
        for y, expected in zip(ours.feature_maps(x), maps, strict=True):
            assert relative_error(y, expected) < 1e-5


def test_locatvit_without_gaussians_equals_it() -> None:
    locat, vit = (build_backbone(name, arch=SMALL).eval() for name in ('LocAtViT', 'ViT'))
    assert not load_weights(vit, locat.state_dict()).missing
    x = torch.randn(1, 3, 50, 100)
    with torch.no_grad():
        assert relative_error(locat(x)[0], vit(x)[0]) > 1e-3
        silence(locat)
        assert relative_error(locat(x)[0], vit(x)[0]) < 1e-5


def test_rotary_is_refused() -> None:
    with pytest.raises(ValueError, match="pos_embed='rotary' is LocAtViT's"):
        build_backbone('ViT', arch=dict(SMALL, pos_embed='rotary'))
