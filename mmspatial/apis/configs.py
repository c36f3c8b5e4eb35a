"""Find, read and change configs; every mistake in them is reported in one message."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import Any

from mmengine.config import Config, DictAction

from mmspatial.suggest import near

from .backbones import check_backbone, swap_backbone
from .data import set_data_root
from .errors import UserError, require_openmmlab, warn

# Keys which MMEngine reads from a config besides the runner's arguments.
_MMENGINE_KEYS = {
    'activation_checkpointing',
    'compile',
    'custom_imports',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'runner_type',
    'sync_bn',
    'tta_model',
    'tta_pipeline',
}


def config_folder() -> Path:
    """Return the folder of the configs that we ship, in a wheel as in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / '.mim' / 'configs'
    return (installed if installed.is_dir() else package.parent / 'configs').resolve()


def find_config(name: str) -> Path:
    """Find a config by its path or, for those that we ship, by its bare name.

    Args:
        name: A path, ``upernet_evt_b_ade20k`` or ``mmspatial::upernet_evt_b_ade20k.py``.

    Returns:
        Path of an existing file.

    Raises:
        UserError: If there is none; the message names similar ones.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    ours = config_folder()
    bare = name.removeprefix('mmspatial::').removesuffix('.py')
    if (ours / f'{bare}.py').is_file():
        return ours / f'{bare}.py'
    known = sorted(file.stem for file in ours.glob('*.py'))
    raise UserError(
        f"no config '{name}'{near(Path(bare).name, known)}\n"
        f'Give the path of a file, or the name of one in {ours}.'
    )


def read_config(name: str) -> Config:
    """Read a config with everything that it inherits.

    Args:
        name: As in `find_config`.

    Returns:
        The config, its `custom_imports` done.

    Raises:
        UserError: If it does not exist or cannot be read.
    """
    path = find_config(name)
    try:
        return Config.fromfile(path)
    except SyntaxError as error:
        # MMEngine parses copies, so the error does not say in which of the files it is.
        raise UserError(
            f"config '{path}', or one that it inherits from, is no valid Python: {error.msg}, "
            f'line {error.lineno}: {(error.text or "").strip()}'
        ) from error
    except Exception as error:
        raise UserError(
            f"config '{path}' cannot be read: {type(error).__name__}: {error}"
        ) from error


def load_config(args: argparse.Namespace) -> Config:
    """Read the config of a command line and apply the options that change it.

    Args:
        args: Options as `options` parses them. The backbone is swapped first, as if the file
            said so; ``--cfg-options`` come on top.

    Returns:
        The config, with ``work_dir`` set.

    Raises:
        UserError: For anything that the user can mend.
    """
    cfg = read_config(args.config)
    if cfg.get('default_scope') in ('mmseg', 'mmdet'):
        require_openmmlab(cfg.default_scope)
    if args.backbone:
        swap_backbone(cfg, args.backbone, config_folder() / '_base_' / 'backbones')
    if args.cfg_options:
        merge_options(cfg, args.cfg_options)
    check_backbone(cfg)
    if args.data_root:
        set_data_root(cfg, args.data_root)
    if args.work_dir:
        cfg.work_dir = args.work_dir
    elif not cfg.get('work_dir'):
        name = find_config(args.config).stem
        cfg.work_dir = str(Path('work_dirs', f'{name}_{args.backbone}' if args.backbone else name))
    return cfg


def merge_options(cfg: Config, options: list[str]) -> None:
    """Apply ``key=value`` options, refusing keys that nothing would read.

    MMEngine accepts any key, so a misspelt one silently changes nothing. A new key is refused
    at the top level if neither the config nor the runner knows it; below, one that looks like
    a misspelt neighbour is warned of.

    Args:
        cfg: Config to change in place.
        options: ``a.b=value`` each, values as MMEngine writes them.

    Raises:
        UserError: If an option has no ``=``, a suspicious key, or does not fit the config.
    """
    values: dict[str, Any] = {}
    for option in options:
        key, equals, text = option.partition('=')
        if not equals:
            raise UserError(f"--cfg-options takes KEY=VALUE, but got '{option}'")
        node = _check_key(cfg, key)
        try:
            values[key] = DictAction._parse_iterable(text)
        except Exception as error:
            raise UserError(f"--cfg-options {key}: cannot read '{text}': {error}") from error
        if isinstance(node, dict) and values[key] is not None:
            inner = ', '.join(list(node)[:5])
            raise UserError(
                f"--cfg-options {key}={text}: '{key}' is a group of settings ({inner}, …): set "
                f'one of them, such as {key}.{next(iter(node), "KEY")}=VALUE, or none: {key}=None'
            )
    try:
        cfg.merge_from_dict(values)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(f'--cfg-options {" ".join(options)}: {error}') from error


def _check_key(cfg: Config, key: str) -> Any:
    """Refuse or warn of a key that nothing reads; return what the config has there."""
    from mmengine.runner import Runner

    first, *rest = key.split('.')
    read = {*inspect.signature(Runner).parameters, *_MMENGINE_KEYS}
    if first not in read:
        if first not in cfg:
            known = sorted({*cfg.keys(), *read})
            raise UserError(f"--cfg-options {key}: no key '{first}'{near(first, known)}")
        warn(
            f"--cfg-options {key}: '{first}' was only used to put the config together; "
            f'MMEngine does not read it, so this changes nothing there'
        )
    node: Any = cfg.get(first)
    for name in rest:
        if isinstance(node, (list, tuple)) and name.isdigit():
            node = node[int(name)] if int(name) < len(node) else None
            continue
        if not isinstance(node, dict):
            return None
        if name not in node and (hint := near(name, sorted(map(str, node)), cutoff=0.8)):
            # No error: it may be an argument that the config leaves at its default.
            warn(f"--cfg-options {key}: '{name}' is new there{hint}")
        node = node.get(name)
    return node
