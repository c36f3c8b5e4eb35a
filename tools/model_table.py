"""Print a backbone's table of variants: parameters and multiply-adds.

Counted are the multiply-adds of all convolutions and matrix products, those of attention included,
of the backbone without classifier on one image: half of what torch's FlopCounterMode sees when the
reference implementations run on the meta device, where attention is two plain matrix products.
Element-wise work is not counted.
"""

from __future__ import annotations

import argparse

import _start  # noqa: F401 (before what an environment without the package lacks)

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mmspatial.models.builder import backbone_classes
from mmspatial.models.trunks.backbone import Backbone

SIZES = (224, 512)
NUM_CLASSES = 1000


def count_parameters(model: nn.Module) -> int:
    """Return the number of trained numbers."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: nn.Module, size: int) -> int:
    """Return the multiply-adds for one square image, for a model on the meta device."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.empty(1, 3, size, size, device='meta'))
    return counter.get_total_flops() // 2


def table_row(backbone: type[Backbone], arch: str) -> str:
    """Return the row of an arch: its name, parameters twice, multiply-adds at `SIZES`."""
    with torch.device('meta'):
        model = backbone(arch=arch, impl='reference').eval()
        classifier = backbone(arch=arch, num_classes=NUM_CLASSES)
    counts = [f'{count_parameters(m):,}' for m in (model, classifier)]
    macs = [f'{count_macs(model, size) / 1e9:.2f}' for size in SIZES]
    return f'| {" | ".join([f"`{arch}`", *counts, *macs])} |'


def main(argv: list[str] | None = None) -> None:
    """Run the tool."""
    classes = backbone_classes()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('backbone', choices=classes, help='which backbone')
    cls = classes[parser.parse_args(argv).backbone]

    sizes = ' | '.join(f'GMACs at {size}' for size in SIZES)
    print(f'| arch | parameters | with classifier | {sizes} |')
    print('|---|' + '---:|' * (2 + len(SIZES)))
    for arch in cls.variants:
        print(table_row(cls, arch))


if __name__ == '__main__':
    main()
