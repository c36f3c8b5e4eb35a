"""What an attention layer asks of its prior."""

from __future__ import annotations

from torch import Tensor, nn


class Prior(nn.Module):
    """Attends, knowing where tokens are.

    Called as ``prior(q, k, v, positions, num_prefix, key_mask)`` with q, k, v in an op's layout
    ``(B, [G,] M, L, D)``, followed by the tensors that `features` made, in the same layout; it
    returns the attention's output, in that layout too.
    """

    def features(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute what the prior reads from tokens, to be split into groups as they are.

        Args:
            x: The layer's input ``(B, L, C)``.

        Returns:
            Tensors ``(B, L, M, X)``; none for a prior that reads nothing but q, k and v.
        """
        return ()
