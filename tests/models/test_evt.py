from __future__ import annotations

from typing import Any

import pytest
import torch

from mmspatial.models import EVT, RMT
from mmspatial.models.layers.layout import Full, Groups

# In millions, with the classifier (MODELS.md §2).
PARAMETERS = {'tiny': 15.0, 'small': 26.9, 'base': 56.7, 'large': 99.6}
SMALL: dict[str, Any] = dict(
    embed_dims=[8, 16], depths=[2, 3], num_heads=[2, 4], mlp_ratios=[2, 2], decay_init=2,
    decay_range=[4, 6], group_sizes=[9, 9], layer_scale=None, drop_path_rate=0.0,
)  # fmt: skip


def build(seed: int = 0, **options: Any) -> EVT:
    torch.manual_seed(seed)
    arch = {**SMALL, **options.pop('arch', {})}
    model = EVT(arch=arch, **{'out_indices': (0, 1), **options}).eval()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight *= 20  # As small as they begin, attention would hardly matter.
    return model


@pytest.mark.parametrize('arch', PARAMETERS)
def test_parameters(arch: str) -> None:
    with torch.device('meta'):
        model = EVT(arch=arch, num_classes=1000)
    count = sum(p.numel() for p in model.parameters()) / 1e6
    assert count == pytest.approx(PARAMETERS[arch], rel=0.005)


def test_blocks_alternate_grouped_and_dilated() -> None:
    with torch.device('meta'):
        model = EVT(arch='tiny')
    for stage in model.stages[:3]:
        layouts = [block.attn.layouts for block in stage.blocks]
        assert layouts == [(Groups(49, dilated=i % 2 == 1),) for i in range(len(layouts))]
    assert all(isinstance(block.attn.layouts[0], Full) for block in model.stages[3].blocks)


def test_one_group_equals_full_attention() -> None:
    """Grids of 6x8 and 3x4 tokens fit one group each."""
    x = torch.randn(2, 3, 24, 32)
    full = build(arch=dict(group_sizes=[None, None]))
    for size in (48, 500):
        grouped = build(arch=dict(group_sizes=[size, size]))
        for out, expected in zip(grouped(x), full(x), strict=True):
            torch.testing.assert_close(out, expected, rtol=0, atol=5e-6)
    groups = build()
    assert (groups(x)[0] - full(x)[0]).abs().max() > 1e-4


def test_groups_see_each_other_only_through_convolutions_and_the_other_layout() -> None:
    """One block, no convolution on values: a far token's change stays in its group."""
    model = build(arch=dict(depths=[1, 1]), lepe=False)
    block = model.stages[0].blocks[0]
    tokens = torch.randn(1, 12 * 12, 8)
    y = block.attn(tokens, (12, 12))
    tokens[:, 100] += 1
    changed = (block.attn(tokens, (12, 12)) - y).abs().amax((0, 2)) > 0
    assert changed.nonzero().flatten().tolist() == list(range(99, 108))


def test_distance_is_euclidean() -> None:
    """On a row of tokens both metrics agree, and EVT with RMT's options is a full RMT."""
    options = dict(rope=True, conv_ffn=True, arch=dict(group_sizes=None))
    evt = build(**options)
    torch.manual_seed(0)
    arch = {key: value for key, value in SMALL.items() if key != 'group_sizes'}
    rmt = RMT(arch=dict(arch, decomposed=False), out_indices=(0, 1)).eval()
    rmt.load_state_dict(evt.state_dict())
    row, square = torch.randn(1, 3, 4, 64), torch.randn(1, 3, 32, 32)
    for out, expected in zip(evt(row), rmt(row), strict=True):
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    assert (evt(square)[0] - rmt(square)[0]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ('option', 'has'), [('lepe', '.attn.lepe.'), ('conv_ffn', '.ffn.dwconv.'), ('rope', None)]
)
def test_options_change_what_they_say(option: str, has: str | None) -> None:
    on, off = build(**{option: True}), build(**{option: False})
    if has:
        assert any(has in key for key in on.state_dict())
        assert not any(has in key for key in off.state_dict())
    on.load_state_dict(off.state_dict(), strict=False)
    x = torch.randn(1, 3, 32, 32)
    assert (on(x)[0] - off(x)[0]).abs().max() > 1e-4


def test_post_decay_differs_from_the_logits_decay() -> None:
    x = torch.randn(1, 3, 32, 32)
    assert (build(decay_mode='post')(x)[1] - build()(x)[1]).abs().max() > 1e-4
