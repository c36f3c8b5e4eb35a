"""What `tools/model_table.py` does: tables of variants, and of the model zoo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from mmspatial.models.builder import backbone_classes
from mmspatial.models.trunks.backbone import Backbone
from mmspatial.suggest import near

from .costs import count_macs, count_parameters
from .errors import UserError, require_openmmlab

SIZES = (224, 512)
NUM_CLASSES = 1000
ZOO = 'zoo'


class Task(NamedTuple):
    """A table of the zoo.

    Attributes:
        title: Its heading.
        head: First word of its configs' names.
        ending: Last words of their names.
        metric: What the numbers of the papers are.
    """

    title: str
    head: str
    ending: str
    metric: str


TASKS = (
    Task('UperNet, ADE20K, 160k iterations', 'upernet', 'ade20k', 'mIoU'),
    Task('Semantic FPN, ADE20K, 80k iterations', 'semfpn', 'ade20k', 'mIoU'),
    Task('Mask R-CNN, COCO, 12 epochs', 'maskrcnn', 'coco_1x', 'box / mask AP'),
    Task('Mask R-CNN, COCO, 36 epochs', 'maskrcnn', 'coco_3x', 'box / mask AP'),
    Task('Cascade Mask R-CNN, COCO, 36 epochs', 'cascade', 'coco_3x', 'box / mask AP'),
    Task('RetinaNet, COCO, 12 epochs', 'retinanet', 'coco_1x', 'box AP'),
    Task('Probe with a hidden layer, ADE20K, 20k iterations', 'probe', 'ade20k', 'mIoU'),
    Task('Probe with a hidden layer, Pascal Context, 20k iterations', 'probe', 'pascal59', 'mIoU'),
    Task('Probe with a hidden layer, COCO-Stuff, 20k iterations', 'probe', 'cocostuff', 'mIoU'),
    Task('Strict linear probe, ADE20K, 20k iterations', 'linear', 'ade20k', 'mIoU'),
    Task('UperNet, the demo', 'upernet', 'scenes', 'mIoU'),
    Task('Mask R-CNN, the demo', 'maskrcnn', 'scenes', 'box / mask AP'),
)


def table_row(backbone: type[Backbone], arch: str) -> str:
    """Return the row of an arch: its name, parameters twice, multiply-adds at `SIZES`."""
    with torch.device('meta'):
        model = backbone(arch=arch).eval()
        classifier = backbone(arch=arch, num_classes=NUM_CLASSES)
    counts = [f'{count_parameters(m):,}' for m in (model, classifier)]
    macs = [f'{count_macs(model, size) / 1e9:.2f}' for size in SIZES]
    return f'| {" | ".join([f"`{arch}`", *counts, *macs])} |'


def print_variants(cls: type[Backbone]) -> None:
    """Print the table of a backbone's variants."""
    sizes = ' | '.join(f'GMACs at {size}' for size in SIZES)
    print(f'| arch | parameters | with classifier | {sizes} |')
    print('|---|' + '---:|' * (2 + len(SIZES)))
    for arch in cls.variants:
        print(table_row(cls, arch))


def reported_results(folder: Path) -> dict[str, str]:
    """Return what the papers report, by the names of all configs that the model index lists.

    Args:
        folder: Where `model-index.yml` is.

    Returns:
        The paper's number, empty where it has none.
    """
    import yaml

    index = yaml.safe_load((folder / 'model-index.yml').read_text())
    return {
        model['Name']: str(model['Metadata'].get('Reported by the paper', ''))
        for file in index['Import']
        for model in yaml.safe_load((folder / file).read_text())['Models']
    }


def names_of(task: Task, names: list[str]) -> list[str]:
    """Choose the configs of a task, by backbone and size."""
    sizes = ('xs', 't', 's', 'b', 'l')
    words = {
        name: name.removesuffix(f'_{task.ending}').split('_')[1:]
        for name in names
        if name.startswith(f'{task.head}_') and name.endswith(f'_{task.ending}')
    }
    return sorted(words, key=lambda name: (words[name][:-1], sizes.index(words[name][-1])))


def zoo_row(folder: Path, name: str, reported: str) -> str:
    """Return the row of a config: its name, parameters, multiply-adds, the paper's number, ours."""
    from mmengine.config import Config
    from mmengine.registry import DefaultScope

    from .get_flops import count_model

    cfg = Config.fromfile(folder / 'configs' / f'{name}.py')
    # Without memory for the weights, and without a warning for each change of host.
    with DefaultScope.overwrite_default_scope(cfg.default_scope), torch.device('meta'):
        report = count_model(cfg)
    auxiliary = sum(cost.parameters for part, cost in report.rows if part == 'auxiliary_head')
    parameters = (report.total.parameters + auxiliary) / 1e6
    counts = f'{parameters:.1f} M | {report.total.macs / 1e9:.1f}'
    return f'| [`{name}`]({name}.py) | {counts} | {reported} | not measured |'


def zoo_tables(folder: Path) -> Iterator[str]:
    """Yield the lines of the zoo.

    Args:
        folder: Where `configs` and `model-index.yml` are.
    """
    reported = reported_results(folder)
    for task in TASKS:
        yield f'### {task.title}'
        yield ''
        yield f"| config | parameters | GMACs | the paper's {task.metric} | ours |"
        yield '|---|---:|---:|---:|---:|'
        for name in names_of(task, list(reported)):
            yield zoo_row(folder, name, reported[name])
        yield ''


def model_table(what: str, folder: Path) -> None:
    """Print the tables that a command line asks for.

    Args:
        what: Name of a backbone, or `ZOO`.
        folder: Where `configs` and `model-index.yml` are.

    Raises:
        UserError: If there is no such backbone, or the zoo's hosts are missing.
    """
    if what == ZOO:
        require_openmmlab('mmseg', 'mmdet')
        for line in zoo_tables(folder):
            print(line)
        return
    classes = backbone_classes()
    if what not in classes:
        known = [*classes, ZOO]
        raise UserError(f"no backbone '{what}'{near(what, known)}\nKnown: {', '.join(known)}.")
    print_variants(classes[what])
