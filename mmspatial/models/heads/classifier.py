"""Classifier heads, for pretraining only."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ProjectionClassifier(nn.Module):
    """Linear, batch norm and SiLU on every token, their mean, Linear (RMT, EVT, SDT).

    Args:
        dim: Channels C.
        num_classes: Number of logits.
        hidden: Width of the projection.
    """

    def __init__(self, dim: int, num_classes: int, hidden: int = 1024) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.fc = nn.Linear(hidden, num_classes)

    def pool(self, tokens: Tensor) -> Tensor:
        """Map ``(B, N, C)`` to what the last layer reads, ``(B, hidden)``."""
        x = self.norm(self.proj(tokens).transpose(1, 2))  # (B, hidden, N)
        return F.silu(x).mean(-1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ``(B, N, C)`` to ``(B, num_classes)``."""
        return self.fc(self.pool(tokens))
