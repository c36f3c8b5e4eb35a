"""What every backbone does besides computing: outputs, freezing, modes, weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mmengine.logging import print_log
from mmengine.model import BaseModule
from mmengine.model.weight_init import update_init_info
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmspatial.checkpoints import load_weights

from ..layers.block import Stage
from ..layers.tokens import Grid, to_map


@dataclass
class Parts:
    """The modules of a trunk, one entry per stage.

    Attributes:
        embed: Maps an image to tokens and their grid.
        stages: Blocks on one grid each.
        downsamples: ``downsamples[i]`` leads from stage i to the next; None to stay on the grid.
        dims: Channels of each stage.
        strides: Pixels per token of each stage.
    """

    embed: nn.Module
    stages: list[Stage] = field(default_factory=list)
    downsamples: list[nn.Module | None] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)


def check_out_indices(out_indices: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """Return ``out_indices`` in ascending order, negative ones counted from the end.

    Raises:
        ValueError: If it is empty, or an index does not exist or comes twice.
    """
    indices = [i + num_stages if i < 0 else i for i in out_indices]
    if not indices or len(set(indices)) < len(indices):
        raise ValueError(f'out_indices must name at least one stage, each once: {out_indices}')
    if min(indices) < 0 or max(indices) >= num_stages:
        raise ValueError(f'out_indices={tuple(out_indices)}, but there are {num_stages} stages')
    return tuple(sorted(indices))


class Backbone(BaseModule):
    """Stages of blocks with an output after some of them.

    Args:
        parts: The trunk. Stages after the last output are dropped: they would never get a
            gradient.
        out_indices: Stages whose outputs are returned.
        out_norm_eps: Epsilon of a LayerNorm of its own on each output; None for no such norms.
        final_norm: The trunk's last norm, in front of the head; None where the head has its own.
        norm_outputs: Whether the final norm is also on every output.
        head: Classifier on the last stage's tokens, for pretraining; with it, `forward` returns
            logits, and outputs have no norms of their own.
        frozen_stages: -1 freezes nothing, 0 the embedding, k > 0 also the first k stages, and
            ``'all'`` the whole backbone: no gradients, and evaluation mode while the rest trains.
        norm_eval: Whether batch norms stay in evaluation mode in training.
        init_cfg: MMEngine's; ``dict(type='Pretrained', checkpoint=...)`` goes through
            `mmspatial.load_weights`.

    Attributes:
        out_channels: Channels of each output.
        out_strides: Pixels per output position of each output.
        stage_channels: Channels of each stage.
        stage_strides: Pixels per token of each stage.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        out_indices: Sequence[int],
        out_norm_eps: float | None = None,
        final_norm: nn.Module | None = None,
        norm_outputs: bool = False,
        head: nn.Module | None = None,
        frozen_stages: int | str = -1,
        norm_eval: bool = False,
        init_cfg: dict[str, Any] | list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(init_cfg)
        num_stages = len(parts.stages)
        self.out_indices = check_out_indices(out_indices, num_stages)
        frozen = num_stages if frozen_stages == 'all' else frozen_stages
        if not isinstance(frozen, int) or not -1 <= frozen <= num_stages:
            raise ValueError(
                f'frozen_stages={frozen_stages!r}, but there are {num_stages} stages: give -1 to '
                f"{num_stages}, or 'all'"
            )
        self.out_channels = tuple(parts.dims[i] for i in self.out_indices)
        self.out_strides = tuple(parts.strides[i] for i in self.out_indices)
        self.stage_channels, self.stage_strides = tuple(parts.dims), tuple(parts.strides)
        self.frozen_stages = frozen
        self.norm_eval = norm_eval

        used = num_stages if head is not None else self.out_indices[-1] + 1
        self.embed = parts.embed
        self.stages = nn.ModuleList(parts.stages[:used])
        self.downsamples = nn.ModuleList(
            nn.Identity() if module is None else module for module in parts.downsamples[: used - 1]
        )
        self.out_norms = nn.ModuleDict()
        if out_norm_eps is not None and head is None:
            for i in self.out_indices:
                self.out_norms[str(i)] = nn.LayerNorm(parts.dims[i], out_norm_eps)
        # Only where it is used: a parameter without a gradient would stop distributed training.
        self.norm = final_norm if norm_outputs or head is not None else None
        self.norm_outputs = norm_outputs
        self.head = head
        self.apply(_init_layer)
        self._freeze()

    def init_weights(self) -> None:
        """Do as ``init_cfg`` says, checkpoints last; by themselves layers are initialised already.

        Raises:
            CheckpointError: As `mmspatial.load_weights` does, so that no partial load passes
                unnoticed.
        """
        cfgs = [self.init_cfg] if isinstance(self.init_cfg, dict) else list(self.init_cfg or ())
        pretrained = [cfg for cfg in cfgs if cfg.get('type') == 'Pretrained']
        others = [cfg for cfg in cfgs if cfg not in pretrained]
        if others:
            given, self.init_cfg = self.init_cfg, others
            super().init_weights()
            self.init_cfg = given
        for cfg in pretrained:
            report = load_weights(self, cfg['checkpoint'])
            print_log(f'{type(self).__name__}: {report.summary()}', logger='current')
            if hasattr(self, '_params_init_info'):
                update_init_info(self, init_info=f'loaded from {cfg["checkpoint"]}')
        if self.frozen_stages >= 0 and not pretrained:
            print_log(
                f'{type(self).__name__}: what frozen_stages freezes keeps random weights, unless a '
                f'checkpoint of the whole model follows: give --backbone-weights FILE or init_cfg',
                logger='current',
                level=logging.WARNING,
            )
        # Without any there is nothing to do: MMEngine would log a line for every parameter.
        self._is_init = True

    def feature_maps(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map ``(B, in_channels, h, w)`` to ``(B, C_i, ceil(h / s_i), ceil(w / s_i))`` each."""
        return self._run(x)[0]

    def forward(self, x: Tensor) -> tuple[Tensor, ...] | Tensor:
        """Return the feature maps, or with a classifier its logits.

        Args:
            x: Images ``(B, in_channels, h, w)`` of any size.

        Returns:
            One ``(B, C_i, ceil(h / s_i), ceil(w / s_i))`` per entry of ``out_indices``, or
            ``(B, num_classes)``.
        """
        maps, tokens = self._run(x)
        if self.head is None:
            return maps
        return self.head(tokens if self.norm is None else self.norm(tokens))

    def _run(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the feature maps and the last stage's tokens."""
        tokens, grid = self.embed(x)
        maps = []
        for i in range(len(self.stages)):
            tokens, grid = self._run_stage(i, tokens, grid)
            if i in self.out_indices:
                maps.append(to_map(self._out_norm(i)(tokens), grid))
        return tuple(maps), tokens

    def _run_stage(self, i: int, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Bring tokens to the grid of stage i and through its blocks."""
        if i > 0 and not isinstance(self.downsamples[i - 1], nn.Identity):
            tokens, grid = self.downsamples[i - 1](tokens, grid)
        return self.stages[i](tokens, grid), grid

    def _out_norm(self, stage: int) -> nn.Module:
        """Return the norm on a stage's output."""
        if self.norm_outputs:
            return self.norm
        return self.out_norms[str(stage)] if str(stage) in self.out_norms else nn.Identity()

    def train(self, mode: bool = True) -> Backbone:
        """Switch the mode, but for what is frozen and, with ``norm_eval``, batch norms."""
        super().train(mode)
        for module in self._frozen():
            module.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _frozen(self) -> list[nn.Module]:
        """List the modules that ``frozen_stages`` freezes."""
        k = self.frozen_stages
        if k < 0:
            return []
        norms = [norm for i, norm in self.out_norms.items() if int(i) < k]
        if self.norm is not None and k >= len(self.stages):
            norms.append(self.norm)
        return [self.embed, *self.stages[:k], *self.downsamples[: max(k - 1, 0)], *norms]

    def _freeze(self) -> None:
        for module in self._frozen():
            module.requires_grad_(False)
        self.train(self.training)


def _init_layer(module: nn.Module) -> None:
    """Initialise Linear layers as vision transformers do; other layers keep PyTorch's way."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
