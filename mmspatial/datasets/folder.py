"""Decide what may happen to the folder that a generated data set goes to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

STAMP = 'mmspatial_scenes.json'
_OWN = re.compile(
    rf'scene_\w+\.(jpg|png)|instances_(train|val)2017\.json|(train|val)\.txt|{re.escape(STAMP)}'
)


def is_complete(root: Path, parameters: dict[str, object], files: Iterable[str]) -> bool:
    """Tell whether ``root`` already holds the finished set with these parameters."""
    finished = {**parameters, 'complete': True}
    return _read_stamp(root) == finished and all((root / name).is_file() for name in files)


def claim(root: Path, parameters: dict[str, object]) -> None:
    """Make ``root`` ready for a new set: remove an older one of ours, mark it as begun.

    Raises:
        NotADirectoryError: ``root`` is a file.
        FileExistsError: ``root`` holds anything that this package did not write; nothing is
            removed then.
    """
    if root.exists() and not root.is_dir():
        raise NotADirectoryError(f'{root} is a file: name a folder for the scenes')
    present = [path for path in root.rglob('*') if not path.is_dir()] if root.exists() else []
    if present and _read_stamp(root) is None:
        raise FileExistsError(
            f'{root} is not empty and holds no generated scenes: name a new or an empty folder'
        )
    foreign = [path for path in present if not _OWN.fullmatch(path.name)]
    if foreign:
        raise FileExistsError(
            f'{root} holds files that are not generated scenes ({foreign[0].relative_to(root)}): '
            'move them away or name another folder'
        )
    # Only now may a file go; the stamp goes last, so that a set cut short stays ours.
    for path in sorted(present, key=lambda path: path.name == STAMP):
        path.unlink()
    root.mkdir(parents=True, exist_ok=True)
    _write_stamp(root, {**parameters, 'complete': False})


def finish(root: Path, parameters: dict[str, object]) -> None:
    """Mark the set as complete."""
    _write_stamp(root, {**parameters, 'complete': True})


def _read_stamp(root: Path) -> dict[str, object] | None:
    """Return the stamp, {} if it is damaged, None if there is none."""
    path = root / STAMP
    if not path.is_file():
        return None
    try:
        stamp = json.loads(path.read_text())
    except ValueError:
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(root: Path, stamp: dict[str, object]) -> None:
    (root / STAMP).write_text(json.dumps(stamp, indent=2) + '\n')
