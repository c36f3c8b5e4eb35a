"""What `tools/export_onnx.py` does: a model as an ONNX file or an exported PyTorch program.

Both come from `torch.export`, with batch, height and width left open; what has been written is read
again and compared with the model.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from mmspatial.compat.checkpoint import TRUST_VARIABLE
from mmspatial.ops._dispatch import ENV

from .configs import find_config, load_config
from .costs import using_impl
from .errors import UserError, warn
from .folders import make_place
from .inference import load_model

SUFFIXES = {'onnx': '.onnx', 'torch': '.pt2'}
# Greatest difference from the model, over the output's largest value.
TOLERANCE = 1e-4
# The graph is captured at the first size, of images that no window or group covers, and compared
# at the others: a plain one, and one that no patch, window or group divides.
_CAPTURED = (2, 256, 320)
_COMPARED = ((1, 160, 192), (2, 125, 173))
_ONNX_PACKAGES = ('onnx', 'onnxscript', 'onnxruntime')

Compute = Callable[[Tensor], Sequence[Tensor]]


class Segmentor(nn.Module):
    """What is exported of a segmentor: its logits at the image's size.

    Args:
        model: Of mmseg's type ``EncoderDecoder``, in evaluation mode.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.neck = model.neck if model.with_neck else nn.Identity()
        self.head = model.decode_head

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Map ``(B, C, h, w)``, normalised, to logits ``(B, num_classes, h, w)``."""
        logits = self.head(self.neck(self.backbone(image)))
        return (
            F.interpolate(
                logits, image.shape[2:], mode='bilinear', align_corners=self.head.align_corners
            ),
        )


class BinAverage(nn.Module):
    """`nn.AdaptiveAvgPool2d` as two matrix products, which an open size does not hinder.

    Args:
        output_size: Rows and columns of the result, or one number for both.
    """

    def __init__(self, output_size: int | tuple[int, int]) -> None:
        super().__init__()
        self.output_size = (output_size,) * 2 if isinstance(output_size, int) else output_size

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, C, *output_size)``."""
        rows, columns = (
            _bin_weights(size, bins, x)
            for size, bins in zip(x.shape[2:], self.output_size, strict=True)
        )
        return rows @ x @ columns.T


class Enlarge(nn.Module):
    """mmseg's `Upsample` by a whole factor, without rounding sides to constants.

    Args:
        factor: Of both sides.
        mode: Of the interpolation.
        align_corners: Of the interpolation.
    """

    def __init__(self, factor: int, mode: str, align_corners: bool | None) -> None:
        super().__init__()
        self.factor = factor
        self.options = {'mode': mode, 'align_corners': align_corners}

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, C, factor · H, factor · W)``."""
        return F.interpolate(x, [side * self.factor for side in x.shape[2:]], **self.options)


def _bin_weights(size: int, bins: int, like: Tensor) -> Tensor:
    """Return the weights ``(bins, size)`` by which positions are averaged."""
    index = torch.arange(bins, device=like.device)[:, None]
    start, end = index * size // bins, ((index + 1) * size + bins - 1) // bins
    position = torch.arange(size, device=like.device)
    inside = (position >= start) & (position < end)
    return inside.to(like.dtype) / (end - start).to(like.dtype)


def export(args: argparse.Namespace) -> Path:
    """Export as a command line says.

    Args:
        args: Options ``config, checkpoint, out, part, format, fixed_size`` and what `load_config`
            takes.

    Returns:
        The file.

    Raises:
        UserError: For anything that the user can mend, and if the file computes something else
            than the model.
        CheckpointError: If the checkpoint cannot be read.
    """
    if args.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = '1'
    kind, out = _choose_file(args)
    _check_packages(kind)
    cfg = load_config(args)
    _check_part(cfg, args.part)
    checkpoint = None if args.checkpoint == 'none' else args.checkpoint
    model = revert_sync_batchnorm(load_model(cfg, checkpoint).model).eval()
    make_place(out, 'OUT')

    part = model.backbone if args.part == 'backbone' else Segmentor(model)
    channels = cfg.model.backbone.get('in_channels', 3)
    fixed = None if args.fixed_size is None else tuple(args.fixed_size)
    compared = write(part, out, kind, channels, fixed, _describe_input(cfg))
    print('\n'.join([f"written: '{out}'", _describe_input(cfg), *compared]))
    return out


def write(
    model: nn.Module,
    out: Path,
    kind: str,
    channels: int = 3,
    fixed: tuple[int, int] | None = None,
    description: str = '',
) -> list[str]:
    """Write a model that maps images to tensors, and compare what the file computes.

    Args:
        model: In evaluation mode.
        out: The file.
        kind: ``'onnx'`` or ``'torch'``.
        channels: Of the images.
        fixed: Height and width of the only images to take; None for any, with a fallback to the
            size of the capture where that cannot be.
        description: Put into the file.

    Returns:
        A line for each size at which the file was compared.

    Raises:
        UserError: If the model cannot be exported, or the file computes something else.
    """
    try:
        return _write(model, out, kind, channels, fixed, description)
    except Exception as error:
        # Anything may stand in the way: it is the exporters' own code that runs.
        out.unlink(missing_ok=True)
        reason = str(error)
        if not isinstance(error, UserError):
            reason = f'{type(error).__name__}: {_first_line(error)}'
        if fixed is not None:
            raise UserError(f'this model cannot be exported: {reason}') from error
    fixed = _CAPTURED[1:]
    warn(
        f'this model cannot be exported for images of any size ({reason}); exporting it for single '
        f'images of {fixed[0]} x {fixed[1]}, or as --fixed-size H W says'
    )
    return write(model, out, kind, channels, fixed, description)


def _write(
    model: nn.Module,
    out: Path,
    kind: str,
    channels: int,
    fixed: tuple[int, int] | None,
    description: str,
) -> list[str]:
    """Do what `write` does, without falling back."""
    exportable = _exportable(model)
    with _quiet(), using_impl(exportable, 'auto'), mock.patch.dict(os.environ):
        # An op is captured by what 'auto' takes for that, whatever else may run here.
        os.environ.pop(ENV, None)
        program = _capture(exportable, channels, fixed)
        if kind == 'torch':
            torch.export.save(program, out, extra_files={'description.txt': description})
        else:
            _save_onnx(program, out, description, open_sizes=fixed is None)
    sizes = _COMPARED if fixed is None else ((1, *fixed),)
    return _compare(model, _read(out, kind), channels, sizes, out)


def _choose_file(args: argparse.Namespace) -> tuple[str, Path]:
    """Return the format and the file, of which either may say the other."""
    suffix = Path(args.out).suffix if args.out else ''
    by_suffix = {value: key for key, value in SUFFIXES.items()}
    if args.out and suffix not in by_suffix:
        raise UserError(f"OUT '{args.out}' must end with {' or '.join(by_suffix)}")
    kind = args.format or by_suffix.get(suffix, 'onnx')
    if args.out and SUFFIXES[kind] != suffix:
        raise UserError(f"--format {kind} writes {SUFFIXES[kind]} files, but OUT is '{args.out}'")
    if args.out:
        return kind, Path(args.out).expanduser()
    words = [find_config(args.config).stem, args.backbone, args.part == 'backbone' and args.part]
    return kind, Path('_'.join(word for word in words if word) + SUFFIXES[kind])


def _check_packages(kind: str) -> None:
    if not hasattr(torch.compiler, 'is_exporting'):
        raise UserError(f'exporting needs PyTorch 2.7 or newer, this is {torch.__version__}')
    if kind != 'onnx':
        return
    missing = []
    for name in _ONNX_PACKAGES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            missing.append(name)
    if missing:
        raise UserError(
            f'ONNX needs {", ".join(missing)}: pip install {" ".join(missing)}, or write '
            "PyTorch's own format with --format torch"
        )


def _check_part(cfg: Config, part: str) -> None:
    """Refuse models of which only the backbone can be exported."""
    kind = str(cfg.model.type).rpartition('.')[2]
    if part == 'model' and kind != 'EncoderDecoder':
        raise UserError(
            f"of a model of type '{kind}' only the backbone can be exported: --part backbone "
            "(whole models: those of mmseg's type EncoderDecoder)"
        )


def _describe_input(cfg: Config) -> str:
    """Say what the model takes."""
    settings = cfg.model.get('data_preprocessor') or {}
    swapped = settings.get('bgr_to_rgb') or settings.get('rgb_to_bgr')
    mean, std = settings.get('mean'), settings.get('std')
    text = f'input: images (B, C, H, W), {"RGB" if swapped else "channels as they are read"}'
    return f'{text}, minus mean {list(mean)}, over std {list(std)}' if mean and std else text


def _exportable(model: nn.Module) -> nn.Module:
    """Return a copy in which what cannot be captured with open sizes is replaced by its like."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            setattr(parent, name, _capturable(child))
    return model


def _capturable(module: nn.Module) -> nn.Module:
    """Return what computes the same with open sizes; most modules do themselves."""
    if isinstance(module, nn.AdaptiveAvgPool2d):
        size = module.output_size
        return BinAverage(size) if isinstance(size, int) or None not in size else module
    is_upsample = type(module).__name__ == 'Upsample' and 'mmseg' in type(module).__module__
    if is_upsample and isinstance(module.scale_factor, float) and module.scale_factor.is_integer():
        return Enlarge(int(module.scale_factor), module.mode, module.align_corners)
    return module


def _capture(model: nn.Module, channels: int, fixed: tuple[int, int] | None) -> ExportedProgram:
    """Capture the graph, with sizes left open unless one is fixed."""
    if fixed is not None:
        with torch.no_grad():
            return torch.export.export(model, (torch.rand(1, channels, *fixed),))
    image = torch.rand(_CAPTURED[0], channels, *_CAPTURED[1:])
    sizes = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    # As PyTorch's own ONNX exporter sets it: a size of 1 may follow where there was another.
    with torch.fx.experimental._config.patch(backed_size_oblivious=True), torch.no_grad():
        program = torch.export.export(model, (image,), dynamic_shapes=sizes)
    # What is left of guards compares strides of the captured size; nothing in the graph depends
    # on them, as the comparison at other sizes shows.
    if hasattr(program, '_guards_code'):
        program._guards_code = []
    return program


def _save_onnx(program: ExportedProgram, out: Path, description: str, *, open_sizes: bool) -> None:
    """Write a captured graph as an ONNX file."""
    count = len(program.graph_signature.user_outputs)
    onnx = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=['image'],
        output_names=['output'] if count == 1 else [f'output{i}' for i in range(count)],
        # Only names here: the program knows which sizes are open.
        dynamic_shapes=({0: 'batch', 2: 'height', 3: 'width'},) if open_sizes else None,
    )
    onnx.model.metadata_props['description'] = description
    onnx.save(out)


def _read(out: Path, kind: str) -> Compute:
    """Read a file back, as a function of images."""
    if kind == 'torch':
        return torch.export.load(out).module()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(out, options, providers=['CPUExecutionProvider'])
    return lambda image: [
        torch.from_numpy(found) for found in session.run(None, {'image': image.numpy()})
    ]


@torch.no_grad()
def _compare(
    model: nn.Module,
    exported: Compute,
    channels: int,
    sizes: Sequence[tuple[int, int, int]],
    out: Path,
) -> list[str]:
    """Compare a file with the model on random images of some sizes."""
    lines = []
    for batch, height, width in sizes:
        image = torch.randn(batch, channels, height, width)
        what = f'{batch} image(s) of {height} x {width}'
        wanted = model(image)
        try:
            found = exported(image)
            worst = max(_difference(a, b) for a, b in zip(found, wanted, strict=True))
        except Exception as error:
            raise UserError(
                f"'{out}' fails on {what}: {type(error).__name__}: {_first_line(error)}"
            ) from error
        if not worst <= TOLERANCE:
            raise UserError(
                f"'{out}' computes something else: on {what} it differs from the model by "
                f'{worst:.1e} of the largest value (at most {TOLERANCE:.0e})'
            )
        lines.append(f'compared with the model on {what}: {worst:.1e} of the largest value')
    return lines


def _difference(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, as a share of the largest value."""
    if found.shape != wanted.shape:
        raise ValueError(f'a shape of {tuple(found.shape)} instead of {tuple(wanted.shape)}')
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def _first_line(error: Exception) -> str:
    # PyTorch colours some of its messages.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else 'no details'


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' many words about themselves off the screen."""
    loggers = [logging.getLogger(name) for name in ('torch', 'onnxscript', 'onnx_ir')]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
