"""The files of the page: plain, short, and of nobody else."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_provider_eaco import provider


def test_the_files_are_as_small_as_they_were_meant() -> None:
    """No build step: plain files, each of at most 400 lines, that name no address beyond the own server."""
    folder = Path(provider.__file__).parent / "ui"
    for path in folder.rglob("*.*"):
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path.name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path.name
