"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``, which takes its name when the block ends well.

    On an exception what was written is removed and an older file of that name stays as it was. The folder is
    made if it is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process id keeps two runs that write one name from mixing their halves; the last to end wins.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
