"""Where a command's files go (``--out``): looked at before any work is done for a place that takes none."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from airflow_provider_eaco.core.model.errors import InvalidSettingError

_FOLDER = "a folder that takes files, or one that can be made"
_FILE = "the name of a file in a folder that takes files, or in one that can be made"


def out_path(text: str) -> Path:
    """Return the path, for argparse.

    :raises argparse.ArgumentTypeError: for an empty text, which a path would take for the current folder.
    """
    if not text:
        raise argparse.ArgumentTypeError("is empty; expected a path")
    return Path(text)


def check_out_folder(folder: Path) -> None:
    """Check that files can be written there; afterwards all is as it was, and what was missing still is.

    :raises InvalidSettingError: naming ``--out`` and what is allowed.
    """
    _check(folder, folder, _FOLDER)


def check_out_file(path: Path) -> None:
    """Check that a file can be written there, be it in place of another; afterwards all is as it was.

    :raises InvalidSettingError: naming ``--out`` and what is allowed.
    """
    _check(path.parent, path, _FILE)
    if path.exists() and not path.is_file():
        raise InvalidSettingError("--out", f"{path}: is no file; expected {_FILE}")


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Tell of a file that cannot be written in the block (a full disk) as of ``--out``.

    :raises InvalidSettingError: with what the system says of it.
    """
    try:
        yield
    except OSError as error:
        problem = f"{error.filename or out}: cannot be written: {error.strerror or error}"
        raise InvalidSettingError("--out", problem) from error


def _check(folder: Path, out: Path, expected: str) -> None:
    missing: list[Path] = []
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        # Permission bits do not tell: root passes them, and a file system may be read-only.
        with TemporaryFile(dir=folder):
            pass
        # Here a name shows that is too long.
        out.exists()
    except OSError as error:
        problem = f"{out}: {error.strerror or error}; expected {expected}"
        raise InvalidSettingError("--out", problem) from error
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
