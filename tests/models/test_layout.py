from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from mmspatial.models.layers.attention import SpatialAttention
from mmspatial.models.layers.layout import Columns, Full, Groups, Layout, Rows
from mmspatial.models.layers.priors import DecayPrior
from mmspatial.ops.positions import grid_positions

CPU = torch.device('cpu')
GRIDS = [(1, 1), (1, 5), (6, 1), (7, 7), (5, 9), (8, 6)]
LAYOUTS: list[Layout] = [
    Full(), Rows(), Columns(),
    *(Groups(size, dilated) for size, dilated in product((1, 4, 7, 49, 100), (False, True))),
]  # fmt: skip


def members(layout: Layout, grid: tuple[int, int]) -> list[list[int]]:
    """Index the tokens of each group, -1 for padding, as `split` forms them."""
    numbers = torch.arange(1, grid[0] * grid[1] + 1).view(1, -1, 1, 1)
    groups = layout.split(numbers, grid)[..., 0, :, 0] - 1
    return groups.flatten(0, -2).tolist()


@pytest.mark.parametrize('grid', GRIDS, ids=str)
@pytest.mark.parametrize('layout', LAYOUTS, ids=repr)
def test_merge_undoes_split_and_groups_cover_every_token_once(
    layout: Layout, grid: tuple[int, int]
) -> None:
    x = torch.randn(2, grid[0] * grid[1], 3, 5)
    assert torch.equal(layout.merge(layout.split(x, grid), grid), x)
    tokens = [i for group in members(layout, grid) for i in group if i >= 0]
    assert sorted(tokens) == list(range(grid[0] * grid[1]))


@pytest.mark.parametrize('grid', GRIDS, ids=str)
@pytest.mark.parametrize('layout', LAYOUTS, ids=repr)
def test_positions_are_those_of_the_tokens(layout: Layout, grid: tuple[int, int]) -> None:
    """Distances are the grid's, wherever the layout puts its origin."""
    positions, key_mask = layout.positions(grid, CPU)
    if not isinstance(positions, Tensor):
        positions = grid_positions(*positions, CPU)
    groups = members(layout, grid)
    positions = positions.expand(len(groups), -1, -1)
    for g, group in enumerate(groups):
        assert len(group) == positions.shape[1]
        for (a, i), (b, j) in product(enumerate(group), repeat=2):
            if min(i, j) >= 0:
                expected = [i // grid[1] - j // grid[1], i % grid[1] - j % grid[1]]
                assert (positions[g, a] - positions[g, b]).tolist() == expected
        mask = [True] * len(group) if key_mask is None else key_mask[g].tolist()
        assert mask == [i >= 0 for i in group]


def test_prefix_tokens_pass_through_the_full_layout() -> None:
    x = torch.randn(2, 2 + 6, 3, 5)
    assert torch.equal(Full().split(x, (2, 3)), x.transpose(1, 2))
    assert torch.equal(Full().merge(Full().split(x, (2, 3)), (2, 3)), x)


def test_rows_and_columns_by_hand() -> None:
    assert members(Rows(), (2, 3)) == [[0, 1, 2], [3, 4, 5]]
    assert members(Columns(), (2, 3)) == [[0, 3], [1, 4], [2, 5]]


def test_groups_by_hand() -> None:
    assert members(Groups(4), (2, 5)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, -1, -1]]
    dilated = [[0, 3, 6, 9], [1, 4, 7, -1], [2, 5, 8, -1]]
    assert members(Groups(4, dilated=True), (2, 5)) == dilated


@pytest.mark.parametrize('total', range(1, 60))
@pytest.mark.parametrize('size', [1, 2, 7, 16, 49])
def test_padding_rules(total: int, size: int) -> None:
    """Grouped: all in the last group. Dilated: in the last min(p, G). No group is all padding."""
    for dilated in (False, True):
        groups = members(Groups(size, dilated), (1, total))
        count, n = len(groups), len(groups[0])
        assert n == min(size, total)
        assert count == -(-total // n)
        p = count * n - total
        pads = [group.count(-1) for group in groups]
        assert sum(pads) == p
        assert max(pads) < n
        padded = [g for g, number in enumerate(pads) if number]
        expected = min(p, count) if dilated else min(p, 1)
        assert padded == list(range(count - expected, count))
        for g, group in enumerate(groups):
            for i in group:
                assert i < 0 or g == (i % count if dilated else i // n)


@pytest.mark.parametrize('side', [56, 28, 14, 7])
@pytest.mark.parametrize('dilated', [False, True])
def test_49_needs_no_padding_at_224(side: int, dilated: bool) -> None:
    layout = Groups(49, dilated)
    positions, key_mask = layout.positions((side, side), CPU)
    assert key_mask is None
    assert positions.shape == (side * side // 49, 49, 2)


@pytest.mark.parametrize('layout', [Full(), Rows(), Columns(), Groups(6), Groups(6, dilated=True)])
def test_splits_without_padding_are_views(layout: Layout) -> None:
    x = torch.randn(2, 12, 3, 5)
    assert layout.split(x, (3, 4)).data_ptr() == x.data_ptr()


def attention(layout: Layout, *, decay_init: float = 2, lepe: bool = False) -> SpatialAttention:
    prior = DecayPrior(2, metric='euclidean', decay_init=decay_init, decay_range=4)
    return SpatialAttention(8, 2, prior, layouts=(layout,), lepe=lepe).double()


def by_group(layer: SpatialAttention, x: Tensor, groups: list[list[int]], width: int) -> Tensor:
    """Attend in one group after the other, without padding, layout or op."""
    heads = layer.num_heads
    q, k, v = (t.unflatten(-1, (heads, -1)) for t in layer.qkv(x).chunk(3, -1))
    out = torch.zeros_like(v)
    exponents = layer.prior.decay_init + layer.prior.decay_range * torch.arange(heads) / heads
    for group in groups:
        index = torch.tensor([i for i in group if i >= 0])
        rows, cols = index // width, index % width
        dist = torch.hypot((rows[:, None] - rows).double(), (cols[:, None] - cols).double())
        bias = torch.log(1 - 2.0**-exponents).double()[:, None, None] * dist
        logits = torch.einsum('bimd,bjmd->bmij', q[:, index], k[:, index]) / q.shape[-1] ** 0.5
        weights = (logits + bias).softmax(-1)
        out[:, index] = torch.einsum('bmij,bjmd->bimd', weights, v[:, index])
    return layer.proj(out.flatten(-2))


@pytest.mark.parametrize('dilated', [False, True])
@pytest.mark.parametrize('grid', [(1, 1), (4, 4), (3, 7), (5, 5)], ids=str)
def test_group_attention_is_attention_in_each_group(grid: tuple[int, int], dilated: bool) -> None:
    """With padding (n = 4): it neither attends nor is attended to."""
    layout = Groups(4, dilated)
    layer = attention(layout)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    expected = by_group(layer, x, members(layout, grid), grid[1])
    torch.testing.assert_close(layer(x, grid), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize('dilated', [False, True])
def test_one_group_is_full_attention(dilated: bool) -> None:
    x = torch.randn(2, 15, 8, dtype=torch.float64)
    grouped, full = attention(Groups(15, dilated), lepe=True), attention(Full(), lepe=True)
    full.load_state_dict(grouped.state_dict())
    torch.testing.assert_close(grouped(x, (3, 5)), full(x, (3, 5)), rtol=0, atol=1e-14)
    torch.testing.assert_close(
        attention_like(grouped, Groups(49, dilated))(x, (3, 5)), full(x, (3, 5)), rtol=0, atol=1e-14
    )


def attention_like(layer: SpatialAttention, layout: Layout) -> SpatialAttention:
    other = attention(layout, lepe=layer.lepe is not None)
    other.load_state_dict(layer.state_dict())
    return other


@pytest.mark.parametrize('dilated', [False, True])
def test_tokens_only_see_their_group(dilated: bool) -> None:
    layout, grid = Groups(4, dilated), (3, 5)
    layer = attention(layout)
    x = torch.randn(1, 15, 8, dtype=torch.float64)
    before = layer(x, grid)
    group = members(layout, grid)[1]
    x[:, group[0]] += 1
    changed = (layer(x, grid) - before).abs().amax((0, 2)) > 0
    assert changed.nonzero().flatten().tolist() == group


def test_a_grouped_and_dilated_pair_commutes_with_permutations_that_keep_its_groups() -> None:
    """Without decay and local enhancement order in a group means nothing.

    With G = n token a * n + b is in group a when grouped and in group b when dilated, so any
    permutation of the a and of the b keeps both kinds of groups.
    """
    grouped, dilated = (attention(Groups(4, d), decay_init=60) for d in (False, True))
    x = torch.randn(1, 16, 8, dtype=torch.float64)

    def pair(x: Tensor) -> Tensor:
        x = x + grouped(x, (4, 4))
        return x + dilated(x, (4, 4))

    order = (torch.tensor([2, 0, 3, 1])[:, None] * 4 + torch.tensor([1, 3, 0, 2])).flatten()
    torch.testing.assert_close(pair(x[:, order]), pair(x)[:, order], rtol=0, atol=1e-13)
    other = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0])
    assert (pair(x[:, other]) - pair(x)[:, other]).abs().max() > 1e-3


def test_heads_must_divide_the_channels() -> None:
    prior = DecayPrior(3, metric='manhattan', decay_init=2, decay_range=4)
    with pytest.raises(ValueError, match='8 channels cannot be divided into 3 heads'):
        SpatialAttention(8, 3, prior)
    with pytest.raises(ValueError, match='rotary needs an even head width, got 3'):
        SpatialAttention(9, 3, prior, rotary=True)
