"""The shipped configs, and what their names say."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from mmengine.config import Config

from mmspatial.apis.configs import config_folder

FOLDER = config_folder()
LEAVES = sorted(file.stem for file in FOLDER.glob('*.py'))
SIZES = {'xs': None, 't': 'tiny', 's': 'small', 'b': 'base', 'l': 'large'}


class Parts(NamedTuple):
    """The words of a config's name; `schedule` is empty where there is only one."""

    head: str
    backbone: str
    size: str
    dataset: str
    schedule: str


def parts(name: str) -> Parts:
    """Take a config's name apart."""
    words = name.split('_')
    schedule = words.pop() if words[-1] in ('1x', '3x') else ''
    return Parts(words[0], '_'.join(words[1:-2]), words[-2], words[-1], schedule)


@functools.cache
def load(name: str) -> Config:
    """Load a config, once, since MMEngine takes its time: whoever changes it copies it."""
    return Config.fromfile(FOLDER / f'{name}.py')


def examples() -> list[str]:
    """Choose few and small configs with every head and every family of backbones among them."""
    sizes = list(SIZES)
    traits = {
        name: {*re.findall(r'_base_/(heads/\w+)', _text(name)), parts(name).backbone}
        for name in sorted(LEAVES, key=lambda name: sizes.index(parts(name).size))
        if parts(name).dataset != 'scenes'
    }
    chosen: list[str] = []
    missing = set().union(*traits.values())
    while missing:
        chosen.append(max(traits, key=lambda name: len(traits[name] & missing)))
        missing -= traits[chosen[-1]]
    return chosen


def _text(name: str) -> str:
    return (FOLDER / f'{name}.py').read_text()
