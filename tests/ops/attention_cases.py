"""Calls of the attention ops, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspatial.models.layers.layout import Columns, Groups, Layout, Rows
from mmspatial.ops import Positions, decay_attention, gated_attention, gaussian_attention

OPS = ('manhattan', 'euclidean', 'gated', 'gaussian')


@dataclass
class Case:
    """What an op is called with, apart from its random tensors."""

    batch: int = 2
    heads: int = 2
    width: int = 16
    value_width: int | None = None
    positions: Positions = (3, 5)
    groups: int | None = None  # the group axis, None for no such axis
    prefix: int = 0
    mask: Tensor | None = None
    layout: Layout | None = None  # cuts strided views out of a (positions) grid of tokens
    scale: float = 1.0  # of the logits
    decay: float = -0.3
    settings: dict = field(default_factory=dict)


def make(op: str, case: Case, dtype: torch.dtype = torch.float64) -> tuple[Callable, dict]:
    """Return the op, ready but for ``impl``, and its tensors by name, which want gradients."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    positions, mask = case.positions, case.mask
    grid = positions if not isinstance(positions, Tensor) else (positions.shape[1], 1)
    tokens = grid[0] * grid[1]

    def per_token(*width: int) -> Tensor:
        """Make features of all tokens: as an op wants them, strided where a layout cuts."""
        size = width[0] if width else 1
        if case.layout is not None:
            x = random(case.batch, tokens, case.heads, size)
            x = case.layout.split(x, grid)
        else:
            groups = () if case.groups is None else (case.groups,)
            x = random(case.batch, *groups, tokens + case.prefix, case.heads, size).transpose(
                -2, -3
            )
        return x

    q, k, v = (
        per_token(w) for w in (case.width, case.width, case.value_width or case.width)
    )  # fmt: skip
    tensors = {'q': q * case.scale, 'k': k, 'v': v}
    if case.layout is not None:
        positions, mask = case.layout.positions(grid, torch.device('cpu'))
    if op in ('manhattan', 'euclidean'):
        rates = torch.linspace(case.decay, case.decay / 4, case.heads, dtype=torch.float64)
        tensors['log_decay'] = rates
        call = partial(decay_attention, metric=op)
    elif op == 'gated':
        tensors['gate'] = F.logsigmoid(per_token(1)[..., case.prefix :, 0])
        tensors['alpha'] = random(case.heads) - case.decay
        call = gated_attention
    else:
        tensors['alpha'] = F.softplus(per_token(1)[..., case.prefix :, 0])
        tensors['var'] = F.softplus(per_token(2)[..., case.prefix :, :]) * 3
        call = partial(gaussian_attention, floor=-8.0)
    tensors = {name: t.to(dtype).detach().requires_grad_() for name, t in tensors.items()}
    call = partial(
        call, positions=positions, num_prefix=case.prefix, key_mask=mask, **case.settings
    )
    return call, tensors


CASES = {
    'full': Case(),
    'one token': Case(positions=(1, 1)),
    'prefix': Case(prefix=2, heads=3),
    'only prefix and one': Case(positions=(1, 1), prefix=3),
    'values of another width': Case(value_width=24),
    'rows': Case(layout=Rows(), positions=(3, 5)),
    'columns': Case(layout=Columns(), positions=(3, 5)),
    'columns of one image': Case(layout=Columns(), batch=1),
    'groups': Case(layout=Groups(4), positions=(3, 5)),
    'dilated groups': Case(layout=Groups(4, dilated=True), positions=(3, 5)),
    'groups on one grid': Case(groups=3),
    'coordinates': Case(positions=torch.rand(1, 15, 2) * 9),
    'mask of an image': Case(mask=torch.arange(15) % 4 > 0),
    'mask of each image': Case(mask=torch.tensor([[True] * 9 + [False] * 6, [False] * 15])),
    'several tiles': Case(positions=(17, 31), heads=1, batch=1, prefix=1),
    'batch of several tiles': Case(positions=(13, 24), heads=3, prefix=1),
}
