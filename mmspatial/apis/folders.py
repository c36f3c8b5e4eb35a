"""Folders that results go to, checked before the work that fills them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .errors import UserError


def make_folder(path: str | os.PathLike[str], option: str) -> None:
    """Make a folder, and make sure that files can be written there.

    Args:
        path: The folder; it may exist.
        option: Which option named it, for the message.

    Raises:
        UserError: If that is impossible.
    """
    try:
        folder = Path(path).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = 'it is a file' if Path(path).is_file() else error.strerror or error
        raise UserError(
            f"{option}: '{path}' is no folder that can be written to ({reason}); name another"
        ) from None


def make_place(path: str | os.PathLike[str], option: str) -> None:
    """Make sure that a file can be written, and make the folders that it needs.

    Args:
        path: The file; it may exist.
        option: Which option named it, for the message.

    Raises:
        UserError: If that is impossible.
    """
    file = Path(path)
    if file.is_dir() or (file.exists() and not os.access(file, os.W_OK)):
        raise UserError(f"{option}: '{path}' is a folder or may not be replaced; name a new file")
    make_folder(file.parent, option)
