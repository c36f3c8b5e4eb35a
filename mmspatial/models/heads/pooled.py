"""The classifier on one token that stands for the image: the class token, or the mean."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def refine_patches(tokens: Tensor, num_heads: int) -> Tensor:
    """Let all tokens attend to one another with themselves as queries, keys and values (PRR).

    There are no parameters and no residual: the gradient of a class token reaches every patch.

    Args:
        tokens: ``(B, L, C)``, normed.
        num_heads: M heads; products are scaled by D**-0.5.

    Returns:
        ``(B, L, C)``.
    """
    x = tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (B, M, L, D)
    return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(2)  # (B, L, C)


class PooledClassifier(nn.Module):
    """Linear on the class token or on the mean of all tokens (plain ViT, Swin, LocAtViT).

    Args:
        dim: Channels C.
        num_classes: Number of logits.
        pool_by: ``'token'`` for the first token, ``'mean'`` for the mean of all.
        refine_heads: Heads of `refine_patches` on the tokens before pooling (LocAtViT); None for
            no refinement.
    """

    def __init__(
        self, dim: int, num_classes: int, *, pool_by: str = 'token', refine_heads: int | None = None
    ) -> None:
        super().__init__()
        self.pool_by = pool_by
        self.refine_heads = refine_heads
        self.fc = nn.Linear(dim, num_classes)

    def pool(self, tokens: Tensor) -> Tensor:
        """Map ``(B, L, C)`` to what the last layer reads, ``(B, C)``."""
        if self.refine_heads is not None:
            tokens = refine_patches(tokens, self.refine_heads)
        return tokens[:, 0] if self.pool_by == 'token' else tokens.mean(1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ``(B, L, C)`` to ``(B, num_classes)``."""
        return self.fc(self.pool(tokens))
