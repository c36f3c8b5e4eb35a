"""What `tools/visualize_attention.py` does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn

from mmspatial.compat.checkpoint import TRUST_VARIABLE
from mmspatial.models import AliasFreeViT

from .attention_maps import AttentionMaps, Layer, Recording, find_layers, recorded
from .configs import load_config
from .errors import UserError
from .folders import make_folder
from .images import read_image, write_picture
from .inference import Predictor, best_device, load_model
from .lettering import PAPER, text_size, write
from .pictures import Picture, Size, fit, resize
from .sheets import sheet

FRESH = 'none'
TITLES = ('query', 'spatial prior', 'attention without prior', 'attention')
_HEAT = cv2.applyColorMap(np.arange(256, dtype=np.uint8), cv2.COLORMAP_INFERNO)[:, 0, ::-1]
_OPACITY = 0.7
_MARK = (0, 200, 255)


class _Scale(NamedTuple):
    """Which values the ends of the colours stand for, and how colours follow values between."""

    low: float
    high: float
    power: float = 1.0

    def shade(self, values: NDArray[np.floating]) -> NDArray[np.intp]:
        """Return the number of each value's colour."""
        level = (values - self.low) / max(self.high - self.low, 1e-12)
        return np.rint(255 * level.clip(0, 1) ** self.power).astype(np.intp)

    def value(self, level: float) -> float:
        """Return the value at a place of the colour bar, from 0 to 1."""
        return self.low + (self.high - self.low) * level ** (1 / self.power)


class _Panel(NamedTuple):
    """A picture with what is below it: a scale of its colours, or words."""

    picture: Picture
    below: _Scale | tuple[str, ...]


def visualize_attention(args: argparse.Namespace) -> Path:
    """Draw where a block attends to, as a command line says.

    Args:
        args: Options as `analysis_options.parse_attention_args` returns them.

    Returns:
        The page; its panels lie beside it in a folder of the same name.

    Raises:
        UserError: For anything that the user can mend.
        CheckpointError: If the checkpoint cannot be read.
    """
    if args.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = '1'
    path = Path(args.image).expanduser()
    image = read_image(path)
    points = _check_points(args.point, image)
    checkpoint = None if args.checkpoint == FRESH else args.checkpoint
    predictor = load_model(load_config(args), checkpoint, args.device or best_device())
    backbone = predictor.model.backbone
    name, stage, layer = choose_block(backbone, args.block)
    heads = _check_heads(args.head, name, layer)
    make_folder(args.out_dir, '--out-dir')

    recording, size = _record(predictor, layer, image)
    shown = resize(image, fit(image, most=480))
    tokens = _tokens_of_pixels(shown, size, backbone.stage_strides[stage])
    folder = Path(args.out_dir).expanduser() / f'{path.stem}_block{name}'
    rows = []
    for x, y in points:
        at = x * shown.shape[1] // image.shape[1], y * shown.shape[0] // image.shape[0]
        for head in heads:
            maps = recording.maps((int(tokens[0][at[1]]), int(tokens[1][at[0]])), head)
            words = [
                f'{type(backbone).__name__}, block {name}, head {head} of {layer.num_heads}',
                f'pixel ({x}, {y})',
            ]
            if maps.outside >= 0.001:
                words[1] += f', {maps.outside:.1%} off the grid'
            panels = _panels(shown, maps, tokens, at, tuple(words))
            for title, panel in zip(TITLES, panels, strict=True):
                file = f'{title.replace(" ", "_")}_x{x}_y{y}_head{head}.png'
                write_picture(folder / file, panel.picture)
            rows.append([_with_scale(panel) for panel in panels])
    page = folder.with_name(f'{folder.name}.png')
    write_picture(page, sheet(rows, TITLES))
    print(f'{page} is the page; its panels are in {folder}')
    return page


def _check_points(points: Sequence[Sequence[int]] | None, image: Picture) -> list[tuple[int, int]]:
    height, width = image.shape[:2]
    for x, y in points or ():
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(
                f'--point {x} {y}: the image has pixels 0 0 to {width - 1} {height - 1}'
            )
    return [(x, y) for x, y in points or [(width // 2, height // 2)]]


def choose_block(backbone: nn.Module, name: str | None) -> tuple[str, int, Layer]:
    """Return name, stage and attention layer of the block that a command line names.

    Raises:
        UserError: If there is none, or the backbone has no attention to draw.
    """
    layers = find_layers(backbone)
    kind = type(backbone).__name__
    if isinstance(backbone, AliasFreeViT):
        raise UserError(
            f'{kind} attends between channels: it has no attention between places of the image, '
            f'and no spatial prior, that could be drawn'
        )
    if not layers:
        raise UserError(f'the backbone, {kind}, has no attention layers of mmspatial')
    if name is None:
        stages = [stage for stage, _ in layers.values()]
        longest = max(stages, key=lambda stage: (stages.count(stage), stage))
        name = [key for key, (stage, _) in layers.items() if stage == longest][-1]
    if name not in layers:
        raise UserError(f"--block '{name}': {kind} has {', '.join(layers)}")
    return name, *layers[name]


def _check_heads(heads: Sequence[int], name: str, layer: Layer) -> Sequence[int]:
    for head in heads:
        if not 0 <= head < layer.num_heads:
            raise UserError(f'--head {head}: block {name} has heads 0 to {layer.num_heads - 1}')
    return heads


@torch.no_grad()
def _record(predictor: Predictor, layer: Layer, image: Picture) -> tuple[Recording, Size]:
    """Run the backbone on an image; return what a layer did and the size that the model saw."""
    data = predictor.pipeline({'img': np.ascontiguousarray(image[..., ::-1]), 'img_id': 0})
    height, width = data['inputs'].shape[-2:]
    batch = {key: [value] for key, value in data.items()}
    inputs = predictor.model.data_preprocessor(batch, False)['inputs']
    with recorded(layer) as recording:
        predictor.model.backbone(inputs)
    return recording, (width, height)


def _tokens_of_pixels(
    shown: Picture, size: Size, stride: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Tell which row and column of tokens each row and column of a picture belongs to."""
    rows, columns = (
        (((np.arange(have) + 0.5) * seen / have) // stride).astype(np.intp)
        for have, seen in zip(shown.shape[:2], reversed(size), strict=True)
    )
    return rows, columns


def _panels(
    shown: Picture,
    maps: AttentionMaps,
    tokens: tuple[NDArray[np.intp], NDArray[np.intp]],
    at: tuple[int, int],
    words: tuple[str, ...],
) -> list[_Panel]:
    """Draw the four panels of one query and head."""
    prior, plain, attention = (_array(x) for x in (maps.prior, maps.plain, maps.attention))
    # A decay leaves 1 at the query and takes from the rest, a bonus leaves 1 far away.
    factor = _Scale(0, 1) if prior.max() <= 1 else _Scale(1, float(prior.max()))
    # Both kinds of attention by one scale. Nearly all of it may be on one token: the root keeps
    # the others apart.
    weight = _Scale(0, float(max(plain.max(), attention.max())), 0.5)
    panels = [_Panel(shown.copy(), words)]
    for values, scale in ((prior, factor), (plain, weight), (attention, weight)):
        panels.append(_Panel(_heat(shown, values, _array(maps.seen), scale, tokens), scale))
    reach = len(tokens[1]) / (tokens[1][-1] + 1)
    for panel in panels:
        _mark(panel.picture, at, round(reach))
    return panels


def _array(x: Tensor) -> NDArray[np.floating]:
    return x.cpu().numpy()


def _heat(
    shown: Picture,
    values: NDArray[np.floating],
    seen: NDArray[np.bool_],
    scale: _Scale,
    tokens: tuple[NDArray[np.intp], NDArray[np.intp]],
) -> Picture:
    """Colour tokens over a grey image; those that the query cannot see stay grey."""
    pixels = np.ix_(*tokens)
    grey = np.array(Image.fromarray(shown).convert('L').convert('RGB'))
    mixed = grey * (1 - _OPACITY) + _HEAT[scale.shade(values)][pixels] * _OPACITY
    faint = 255 - (255 - grey) * 0.45
    return np.where(seen[pixels][..., None], mixed, faint).astype(np.uint8)


def _mark(picture: Picture, at: tuple[int, int], reach: int) -> None:
    """Draw a ring around the query, outside of its token where that is large enough."""
    thin = max(min(picture.shape[:2]) // 150, 1)
    for thickness, colour in ((4 * thin, PAPER), (2 * thin, _MARK)):
        cv2.circle(picture, at, max(reach, 6 * thin), colour, thickness, cv2.LINE_AA)


def _with_scale(panel: _Panel) -> Picture:
    """Put a panel's colours and their ends, or its words, on paper below it."""
    height, width = panel.picture.shape[:2]
    text = max(height // 20, 14)
    line, inset = text_size('', text)[1], text // 2
    paper = Image.new('RGB', (width, 2 * line + 2 * inset), PAPER)
    pen = ImageDraw.Draw(paper)
    if isinstance(panel.below, _Scale):
        shades = np.linspace(0, 255, width - 2 * inset).astype(int)
        bar = Image.fromarray(np.repeat(_HEAT[shades][None], line // 2, 0))
        paper.paste(bar, (inset, inset + line // 4))
        for level in (0.0, 0.5, 1.0):
            label = f'{panel.below.value(level):.2g}'
            room = width - 2 * inset - text_size(label, text)[0]
            write(pen, (inset + round(room * level), inset + line), label, text)
    else:
        for i, words in enumerate(panel.below):
            write(pen, (0, inset + i * line), words, text)
    return np.vstack([panel.picture, np.array(paper)])
