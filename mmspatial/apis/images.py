"""Image files: which ones the words of a command line mean, reading and writing them."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from .errors import UserError
from .pictures import Picture

SUFFIXES = {'.bmp', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp'}


def find_images(words: Sequence[str]) -> list[Path]:
    """List the files that words of a command line mean.

    Args:
        words: Files, folders (their images, not those of folders inside) and patterns with
            ``*``, ``?`` or ``**``.

    Returns:
        Each file once, in the order of the words. A file that is named need not exist.

    Raises:
        UserError: If a folder has no image, or a pattern fits nothing.
    """
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            paths = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
            nothing = f"folder '{word}' has no image ({', '.join(sorted(SUFFIXES))})"
        elif not path.exists() and glob.has_magic(word):
            paths = [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
            paths = [p for p in paths if p.is_file()]
            nothing = f"no file fits '{word}'"
        else:
            paths = [path]
        if not paths:
            raise UserError(nothing)
        found.update(dict.fromkeys(paths))
    return list(found)


def read_image(path: Path) -> Picture:
    """Read an image as the data sets' pipelines do: RGB, turned as its EXIF data says.

    Grey images get three channels, 16 bits become 8, transparency is dropped.

    Args:
        path: The file.

    Returns:
        The image, ``(H, W, 3)``, RGB.

    Raises:
        UserError: If it is missing, unreadable, damaged or no image.
    """
    try:
        content = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}") from None
    if not content.size:
        raise UserError(f"'{path}' is empty")
    _check_whole(path)
    image = cv2.imdecode(content, cv2.IMREAD_COLOR)
    if image is None:
        raise UserError(f"'{path}' is no image, or of a kind that OpenCV does not read")
    return np.ascontiguousarray(image[..., ::-1])


def name_outputs(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Give every image a picture of its own name.

    Args:
        paths: Images.
        folder: Where pictures go.

    Returns:
        ``folder/STEM.png`` each, with a number where several images have the same stem.

    Raises:
        UserError: If a picture would overwrite one of the images.
    """
    images = {path.resolve() for path in paths}
    taken: set[str] = set()
    outputs = []
    for path in paths:
        name, number = path.stem, 2
        # Some file systems take upper and lower case for the same.
        while name.lower() in taken:
            name, number = f'{path.stem}_{number}', number + 1
        taken.add(name.lower())
        outputs.append(folder / f'{name}.png')
        if outputs[-1].resolve() in images:
            raise UserError(f"'{outputs[-1]}' is one of the images: give another --out-dir")
    return outputs


def write_picture(path: Path, picture: Picture) -> None:
    """Write a PNG file, and the folders which it needs.

    Args:
        path: The file.
        picture: RGB.

    Raises:
        UserError: If the place cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    except OSError as error:
        raise UserError(f"'{path}' cannot be written: {error.strerror or error}") from None


def _check_whole(path: Path) -> None:
    """Refuse a file that was cut off: OpenCV would fill the rest with grey."""
    try:
        with Image.open(path) as image:
            image.load()
    except Image.UnidentifiedImageError:
        return  # Perhaps OpenCV knows it.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"'{path}' is damaged: {error}") from None
