"""Parameters and multiply-adds, the same for every implementation of an op and on any machine.

Counted are the multiply-adds of all convolutions and matrix products, those of attention included:
half of what PyTorch's `FlopCounterMode` sees on the meta device while every op takes its reference,
where attention is two plain matrix products. Element-wise work and FFTs are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mmspatial.ops import explain


@dataclass(frozen=True)
class Cost:
    """What a part of a model costs.

    Attributes:
        parameters: Trained numbers.
        macs: Multiply-adds.
    """

    parameters: int
    macs: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.parameters + other.parameters, self.macs + other.macs)


def count_parameters(model: nn.Module) -> int:
    """Return the number of trained numbers."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: nn.Module, height: int, width: int | None = None) -> int:
    """Return the multiply-adds for one image.

    Args:
        model: Takes images of 3 channels; on the meta device.
        height: Of the image, in pixels.
        width: Of the image; None for a square one.
    """
    return _count(model, empty_image(height, height if width is None else width))[0]


def empty_image(height: int, width: int, channels: int = 3) -> Tensor:
    """Return an image ``(1, channels, height, width)`` without content, on the meta device."""
    return torch.empty(1, channels, height, width, device='meta')


def run_counted(module: nn.Module, *inputs: Any) -> tuple[Cost, Any]:
    """Call a module on the meta device.

    Args:
        module: On the meta device.
        inputs: What it takes, on the meta device.

    Returns:
        What it costs, and what it returns.
    """
    macs, _, output = _count(module, *inputs)
    return Cost(count_parameters(module), macs), output


def attention_costs(backbone: nn.Module, image: Tensor) -> tuple[Cost, int]:
    """Return what attention costs in a backbone.

    Args:
        backbone: On the meta device, its attention layers called ``attn``.
        image: ``(1, C, H, W)`` on the meta device.

    Returns:
        The cost of all attention layers, with their projections; and the multiply-adds in them of
        the attention ops alone, by formula, 0 for backbones that have none of our ops.
    """
    layers = [name for name, _ in backbone.named_modules() if name.rpartition('.')[2] == 'attn']
    with explain() as decisions:
        _, by_module, _ = _count(backbone, image)
    root = type(backbone).__name__
    parameters = sum(count_parameters(backbone.get_submodule(name)) for name in layers)
    macs = sum(by_module.get(f'{root}.{name}', 0) for name in layers)
    products = sum(_PRODUCTS[d.op](*d.shape[-2:]) * _rows(d.shape) for d in decisions
                   if d.op in _PRODUCTS)  # fmt: skip
    return Cost(parameters, macs), products


@contextmanager
def using_impl(model: nn.Module, impl: str) -> Iterator[None]:
    """Let all ops of a model take one implementation inside the block.

    Args:
        model: Whose modules of ours have an attribute ``impl`` where they call an op.
        impl: ``'auto'`` or ``'reference'``, which every op has.
    """
    chosen = [
        (module, module.impl)
        for module in model.modules()
        if type(module).__module__.startswith('mmspatial.') and hasattr(module, 'impl')
    ]
    for module, _ in chosen:
        module.impl = impl
    try:
        yield
    finally:
        for module, former in chosen:
            module.impl = former


def _tokens_with_tokens(tokens: int, width: int) -> int:
    """Count the products of queries and keys, and of weights and values, as wide as they are."""
    return 2 * tokens * tokens * width


def _channels_with_channels(tokens: int, width: int) -> int:
    return 2 * tokens * width * width


# For a head (of a group) with q of this shape.
_PRODUCTS: dict[str, Callable[[int, int], int]] = {
    'decay_attention': _tokens_with_tokens,
    'gated_attention': _tokens_with_tokens,
    'gaussian_attention': _tokens_with_tokens,
    'plain_attention': _tokens_with_tokens,
    'cross_covariance_attention': _channels_with_channels,
}


def _rows(shape: tuple[int, ...]) -> int:
    """Return the heads in q ``(B, [G,] M, L, D)``, of all groups and images."""
    return torch.Size(shape[:-2]).numel()


def _count(module: nn.Module, *inputs: Any) -> tuple[int, dict[str, int], Any]:
    """Return the multiply-adds of a call, those of each submodule, and the output."""
    counter = FlopCounterMode(display=False)
    with using_impl(module, 'reference'), torch.no_grad(), counter:
        output = module(*inputs)
    by_module = {
        name: sum(flops.values()) // 2 for name, flops in counter.get_flop_counts().items()
    }
    return counter.get_total_flops() // 2, by_module, output
