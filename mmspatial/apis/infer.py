"""What `tools/infer.py` does."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

import cv2

from mmspatial.compat.checkpoint import TRUST_VARIABLE

from .configs import load_config
from .errors import UserError
from .folders import make_folder
from .fuse import fuse
from .images import find_images, name_outputs, read_image, write_picture
from .inference import Predictor, best_device, load_model, predict, select
from .pictures import Instances, Picture, Result, draw, fit
from .sheets import legend, sheet


def infer(args: argparse.Namespace) -> list[Path]:
    """Draw predictions over images as a command line says.

    Args:
        args: Options as `picture_options.parse_infer_args` returns them.

    Returns:
        The pictures.

    Raises:
        UserError: For anything that the user can mend. What is wrong with single images is said
            at the end, when those which are all right have been drawn.
        CheckpointError: If the checkpoint cannot be read.
    """
    if args.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = '1'
    images = find_images(args.images)
    outputs = name_outputs(images, Path(args.out_dir).expanduser())
    if not any(path.is_file() for path in images):
        for path in images:
            read_image(path)
    cfg = load_config(args)
    predictor = load_model(cfg, args.checkpoint, args.device or best_device())
    if args.fuse:
        predictor = dataclasses.replace(predictor, model=fuse(predictor.model))
    make_folder(args.out_dir, '--out-dir')

    written, faults = [], []
    for path, output in zip(images, outputs, strict=True):
        try:
            image = read_image(path)
            result = predict_above(predictor, image, args.score_thr, path)
            write_picture(output, overlay(predictor, image, result, args.opacity))
        except UserError as error:
            faults.append(str(error))
            print(f'{path}: failed', flush=True)
        else:
            written.append(output)
            print(f'{path} -> {output}', flush=True)
    if faults:
        done = f'{len(written)} of {len(images)} images were drawn'
        raise UserError('\n  '.join([f'{done}; these were not:', *faults]))
    return written


def predict_above(predictor: Predictor, image: Picture, score_thr: float, path: Path) -> Result:
    """Predict what is in an image, without the unsure part.

    Args:
        predictor: The model.
        image: RGB.
        score_thr: Least score of instances.
        path: Where the image is from, for messages.

    Returns:
        A label map or instances.

    Raises:
        UserError: If the image's size is more than the model or the memory takes.
    """
    try:
        result = predict(predictor, image)
    except (RuntimeError, ValueError, MemoryError, ZeroDivisionError, cv2.error) as error:
        height, width = image.shape[:2]
        reason = str(error).strip().splitlines() or ['']
        raise UserError(
            f"'{path}', {width} x {height} pixels, cannot be predicted: "
            f'{type(error).__name__}: {reason[0]}'
        ) from error
    if isinstance(result, Instances):
        return select(result, result.scores >= score_thr)
    return result


def overlay(predictor: Predictor, image: Picture, result: Result, opacity: float) -> Picture:
    """Draw one result at the image's size (small ones larger), with its legend.

    Args:
        predictor: Whose classes they are.
        image: RGB.
        result: What to draw.
        opacity: Of the colours.

    Returns:
        The picture on white paper.
    """
    picture = draw(image, result, predictor.classes, fit(image), opacity)
    return sheet([[picture]], entries=legend([result], predictor.classes))
