from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mmspatial.models.layers.block import Block, LayerScale, Stage, drop_path_rates
from mmspatial.models.layers.conv import DepthwiseConv
from mmspatial.models.layers.ffn import FFN


class Times(nn.Module):
    """A branch that needs no explanation."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return x * self.factor


class Normed(nn.Module):
    """A block with a batch norm, as the alias-free backbone has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return x + self.norm(x.transpose(1, 2)).transpose(1, 2)


def test_drop_path_grows_linearly() -> None:
    assert drop_path_rates(0.2, 3) == pytest.approx([0, 0.1, 0.2])
    assert drop_path_rates(0.2, 1) == [0]


def test_block_is_the_sum_of_its_branches() -> None:
    block = Block(4, Times(2.0), Times(3.0), cpe=True, layer_scale=0.5)
    x = torch.randn(2, 6, 4)
    y = x + DepthwiseConv.forward(block.cpe, x, (2, 3))
    y = y + 0.5 * 2 * torch.layer_norm(y, (4,), eps=1e-6)
    y = y + 0.5 * 3 * torch.layer_norm(y, (4,), eps=1e-6)
    torch.testing.assert_close(block(x, (2, 3)), y)


def test_dropped_paths_leave_the_input_and_kept_ones_are_scaled() -> None:
    block = Block(4, Times(2.0), Times(0.0), drop_path=0.5).train()
    x = torch.randn(64, 6, 4)
    branch = 2 * torch.layer_norm(x, (4,), eps=1e-6)
    change = block(x, (2, 3)) - x
    kept = change.abs().amax((1, 2)) > 0
    assert 16 < kept.sum() < 48
    torch.testing.assert_close(change[kept], 2 * branch[kept])
    torch.testing.assert_close(block.eval()(x, (2, 3)), x + branch)


def test_layer_scale_is_per_channel() -> None:
    scale = LayerScale(3, 1e-6)
    assert scale.gamma.tolist() == pytest.approx([1e-6] * 3)
    scale.gamma.data = torch.tensor([1.0, 2.0, 3.0])
    assert scale(torch.ones(1, 2, 3)).tolist() == [[[1, 2, 3], [1, 2, 3]]]


def test_depthwise_convolution_gives_prefix_tokens_zeros() -> None:
    conv = DepthwiseConv(4, 3)
    x = torch.randn(2, 2 + 6, 4)
    out = conv(x, (2, 3))
    assert (out[:, :2] == 0).all()
    assert torch.equal(out[:, 2:], conv(x[:, 2:], (2, 3)))
    image = x[:, 2:].transpose(1, 2).unflatten(2, (2, 3))
    expected = nn.functional.conv2d(image, conv.weight, conv.bias, padding=1, groups=4)
    torch.testing.assert_close(out[:, 2:], expected.flatten(2).transpose(1, 2))


def test_ffn_with_and_without_convolution() -> None:
    ffn = FFN(4, 2, conv=True)
    x = torch.randn(2, 6, 4)
    hidden = nn.functional.gelu(ffn.fc1(x))
    expected = ffn.fc2(hidden + DepthwiseConv.forward(ffn.dwconv, hidden, (2, 3)))
    torch.testing.assert_close(ffn(x, (2, 3)), expected)
    ffn.dwconv = None
    torch.testing.assert_close(ffn(x, (2, 3)), ffn.fc2(hidden))


@pytest.mark.parametrize('mode', [True, False])
def test_recomputing_updates_batch_norms_once(mode: bool) -> None:
    torch.manual_seed(0)
    plain, recomputing = Stage([Normed()]), Stage([Normed()], with_cp=True)
    x = torch.randn(3, 6, 4)
    weights = torch.randn(3, 6, 4)
    for stage in (plain, recomputing):
        (stage.train(mode)(x, (2, 3)) * weights).sum().backward()
    norm, other = plain.blocks[0].norm, recomputing.blocks[0].norm
    assert norm.num_batches_tracked == int(mode)
    for name, value in norm.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    assert torch.equal(other.weight.grad, norm.weight.grad)
    assert other.momentum == norm.momentum
