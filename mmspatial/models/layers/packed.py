"""Linear layers for inference, whose weights a CPU finds in the order in which it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspatial.ops import is_capturing

# The operators through which PyTorch's own compiler reaches oneDNN.
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(
    torch.ops.mkldnn, '_linear_pointwise'
)


class PackedLinear(nn.Linear):
    """A linear layer that sorts its weight into oneDNN's blocks once, not in every call.

    It holds the weight twice from its first call on. Where oneDNN has no part - on a GPU, in other
    dtypes, under autocast, with gradients, in a captured graph - it is the plain layer.

    Args:
        weight: ``(C', C)``.
        bias: ``(C',)`` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias is not None, device='meta')
        self.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)
        self._packed: tuple[Any, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., C)`` to ``(..., C')``."""
        if not self._takes_blocks(x):
            return super().forward(x)
        key = self.weight.data_ptr(), self.weight._version
        if self._packed is None or self._packed[0] != key:
            self._packed = key, torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
        return torch.ops.mkldnn._linear_pointwise(x, self._packed[1], self.bias, 'none', [], '')

    def _takes_blocks(self, x: Tensor) -> bool:
        return (
            _HAS_ONEDNN
            and x.is_cpu
            and x.dtype == self.weight.dtype == torch.float32
            and not (torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad))
            and not torch.is_autocast_enabled('cpu')
            and not is_capturing()
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the blocks out of copies and files."""
        return {**self.__dict__, '_packed': None}


def packed(layer: nn.Linear) -> PackedLinear:
    """Make the packed form of a layer, which shares its weights."""
    return PackedLinear(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())


def packed_parts(layer: nn.Linear, sizes: Sequence[int]) -> list[PackedLinear]:
    """Make a packed layer of its own for each run of output channels.

    Args:
        layer: With bias.
        sizes: Channels of each, whose sum is that of the layer.
    """
    parts = zip(layer.weight.detach().split(sizes), layer.bias.detach().split(sizes), strict=True)
    return [PackedLinear(weight, bias) for weight, bias in parts]
