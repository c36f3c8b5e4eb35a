"""Make a resumed run go on exactly as the uninterrupted one would have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner


class IterationNoise(Hook):
    """Let the noise of an iteration depend on seed, rank and iteration alone.

    Checkpoints hold no state of random generators, so dropout, drop path and the sampling of
    boxes would differ after a resume, as they would after one more validation.
    """

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Seed PyTorch's generators, on every device, for the iteration that begins."""
        # Mixed by primes, since some generators use the low 32 bits only.
        seed = runner.seed * 1_000_003 + runner.iter * 4_099 + runner.rank
        torch.manual_seed(seed % 2**32)


class SkipTrainedBatches(Hook):
    """Reach the batch to resume at without loading those before it.

    Upstream MMEngine loads and throws away every batch that was trained on, hours of work in a
    long run. The forks skip by themselves.
    """

    def before_train(self, runner: Runner) -> None:
        """Put an iterator in place whose first, discarded batches are empty."""
        loop = runner.train_loop
        iterator = getattr(loop, 'dataloader_iterator', None)
        if iterator is None or loop.iter == 0 or hasattr(iterator, 'skip_iter'):
            return
        sampler, batch_size = loop.dataloader.sampler, loop.dataloader.batch_size
        if hasattr(sampler, '_indices_of_rank') and batch_size is not None:
            sampler.indices = itertools.islice(
                sampler._indices_of_rank(), loop.iter * batch_size, None
            )
            loop.dataloader_iterator = _after(loop.iter, iterator, loop.dataloader)


def _after(count: int, iterator: Any, loader: Any) -> Iterator[Any]:
    yield from itertools.repeat(None, count)
    # A new one: that of the start has already asked the sampler for its first batches.
    yield from type(iterator)(loader)
