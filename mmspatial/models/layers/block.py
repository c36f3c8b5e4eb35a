"""The residual block that all trunks share, and a stage of such blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from .conv import ResidualConv
from .inplace import add_to_branch
from .tokens import Grid


def drop_path_rates(last: float, depth: int) -> list[float]:
    """Let the drop path rate grow linearly from 0 at the first block to ``last``."""
    # Python's numbers, so that models can be built on PyTorch's meta device.
    return [last * i / max(depth - 1, 1) for i in range(depth)]


class LayerScale(nn.Module):
    """Multiply each channel by a learned factor.

    Args:
        dim: Channels C.
        init: Value that the factors start from.
    """

    def __init__(self, dim: int, init: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(init)))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, L, C)`` to the same shape."""
        return x * self.gamma

    def fold_into(self, layer: nn.Linear | nn.Conv2d) -> nn.Module:
        """Let the layer before, which ends the branch, do this one's work; return what is left."""
        layer.weight.data *= self.gamma.view(-1, *(1,) * (layer.weight.dim() - 1))
        layer.bias.data *= self.gamma
        return nn.Identity()


class Block(nn.Module):
    """Positional encoding, attention and feed-forward network, each residual and pre-normed.

    ::

        x += cpe(x);  x += drop_path(ls1(attn(norm1(x))));  x += drop_path(ls2(ffn(norm2(x))))

    Args:
        dim: Channels C.
        attn: Module on tokens and grid.
        ffn: Module on tokens and grid.
        cpe: Whether to have the 3x3 depthwise positional encoding.
        layer_scale: Initial layer scale; None for none.
        drop_path: Probability with which training drops a branch of a sample.
        norm_eps: Epsilon of both LayerNorms.
    """

    def __init__(
        self,
        dim: int,
        attn: nn.Module,
        ffn: nn.Module,
        *,
        cpe: bool = False,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.cpe = ResidualConv(dim, 3) if cpe else None
        self.norm1 = nn.LayerNorm(dim, norm_eps)
        self.attn = attn
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, norm_eps)
        self.ffn = ffn
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, P + H·W, C)`` to the same shape."""
        if self.cpe is not None:
            x = self.cpe(x, grid)
        x = add_to_branch(self.drop_path(self.ls1(self.attn(self.norm1(x), grid))), x)
        return add_to_branch(self.drop_path(self.ls2(self.ffn(self.norm2(x), grid))), x)

    def fuse_for_inference(self) -> None:
        """Fold the layer scales into the layers before them."""
        if isinstance(self.ls1, LayerScale):
            self.ls1 = self.ls1.fold_into(self.attn.proj)
            self.ls2 = self.ls2.fold_into(self.ffn.fc2)


class Stage(nn.Module):
    """Blocks on one grid.

    Args:
        blocks: The blocks.
        with_cp: Whether training recomputes each block in the backward pass to save memory.
    """

    def __init__(self, blocks: Sequence[nn.Module], *, with_cp: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.with_cp = with_cp

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, P + H·W, C)`` to the same shape."""
        for block in self.blocks:
            if self.with_cp and torch.is_grad_enabled():
                x = _recomputed(block, x, grid)
            else:
                x = block(x, grid)
        return x


def _recomputed(block: nn.Module, x: Tensor, grid: Grid) -> Tensor:
    """Run a block that keeps nothing for the backward pass but its input."""
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    # The re-entrant form gives no gradients when the input, an image, needs none.
    if not norms:
        return checkpoint(block, x, grid, use_reentrant=False)

    @contextmanager
    def second_pass() -> Iterator[None]:
        """Leave the running statistics alone: the first pass has updated them already."""
        kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        try:
            yield
        finally:
            for norm, momentum, count in kept:
                norm.momentum, norm.num_batches_tracked = momentum, count

    return checkpoint(
        block, x, grid, use_reentrant=False, context_fn=lambda: (nullcontext(), second_pass())
    )
