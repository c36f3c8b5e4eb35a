"""Depthwise convolutions on tokens; and folding norms into convolutions for inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from .inplace import add_to_branch
from .tokens import Grid, to_map, to_tokens


class DepthwiseConv(nn.Conv2d):
    """Convolve every channel of the token grid by itself, with bias and zero padding.

    Serves as positional encoding (3x3), as local enhancement of values (5x5) and inside the
    feed-forward network (3x3). Prefix tokens have no neighbours: they get zeros.

    Args:
        dim: Channels C.
        kernel_size: Side of the kernel, odd.
    """

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, P + H·W, C)`` to the same shape."""
        out = to_tokens(super().forward(to_map(x, grid)))
        num_prefix = x.shape[1] - out.shape[1]
        if num_prefix:
            out = torch.cat((torch.zeros_like(x[:, :num_prefix], dtype=out.dtype), out), 1)
        return out


class ResidualConv(DepthwiseConv):
    """Add a depthwise convolution of the tokens to them.

    Args:
        dim: Channels C.
        kernel_size: Side of the kernel, odd.
    """

    fused = False

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, P + H·W, C)`` to the same shape."""
        if not self.fused:
            return add_to_branch(super().forward(x, grid), x)
        out = to_tokens(nn.Conv2d.forward(self, to_map(x, grid)))
        num_prefix = x.shape[1] - out.shape[1]
        return torch.cat((x[:, :num_prefix], out), 1) if num_prefix else out

    def fuse_for_inference(self) -> None:
        """Add the input by the kernel's centre, once and for all."""
        if not self.fused:
            self.fused = True
            centre = self.kernel_size[0] // 2
            self.weight.data[:, :, centre, centre] += 1


def fuse_norm_after(conv: nn.Conv2d, norm: nn.Module) -> tuple[nn.Conv2d, nn.Module]:
    """Fold a batch norm into the convolution before it; another norm stays as it is."""
    if not isinstance(norm, _BatchNorm):
        return conv, norm
    return fuse_conv_bn_eval(conv.eval(), norm.eval()), nn.Identity()


def fuse_norm_before(norm: nn.Module, conv: nn.Conv2d) -> nn.Module:
    """Fold a batch norm into the circular depthwise convolution after it; return what is left."""
    if not isinstance(norm, _BatchNorm):
        return norm
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    shift = norm.bias - norm.running_mean * scale
    conv.bias.data += shift * conv.weight.sum((1, 2, 3))
    conv.weight.data *= scale[:, None, None, None]
    return nn.Identity()
