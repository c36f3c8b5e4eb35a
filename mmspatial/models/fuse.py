"""Folding what training needs, and inference does not, into the weights around it."""

from __future__ import annotations

import copy

import torch
from torch import nn

from .layers.packed import packed


def fuse_for_inference(model: nn.Module) -> nn.Module:
    """Copy a model, with fewer steps to the same outputs.

    In backbones of this package batch norms go into convolutions, layer scales into the layers
    before them, and ``x + conv(x)`` becomes one convolution; around them, so do the batch norms of
    mmcv's `ConvModule`, which the hosts' heads are made of. Weights of linear layers are kept a
    second time, in the order in which a CPU reads them. Outputs change by rounding, less than 1e-5
    of their scale.

    Args:
        model: A backbone, or a segmentor or detector with one.

    Returns:
        A copy in evaluation mode without gradients. Its weights have names of their own: train,
        save and load the original.

    Example:
        >>> import mmspatial, torch
        >>> model = mmspatial.build_backbone('RMT', arch='tiny').eval()
        >>> fused = mmspatial.fuse_for_inference(model)
        >>> x = torch.randn(1, 3, 64, 64)
        >>> torch.allclose(fused(x)[3], model(x)[3], atol=1e-4)
        True
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for module in list(model.modules()):
        if hasattr(module, 'fuse_for_inference'):
            module.fuse_for_inference()
        elif type(module).__name__ == 'ConvModule' and module.with_norm:
            _fuse_conv_module(module)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, packed(child))
    # Maps made of tokens are channels-last, and weights in another order are sorted every time.
    return model.to(memory_format=torch.channels_last)


def _fuse_conv_module(module: nn.Module) -> None:
    """Fold the batch norm of mmcv's module of convolution, norm and activation."""
    from mmcv.cnn import fuse_conv_bn

    if module.order.index('norm') == module.order.index('conv') + 1:
        fuse_conv_bn(module)
