"""The folder of checkpoints: what is kept, and what a reader can see."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_eaco.integrations.checkpoint_folder import CheckpointFolder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    """Older ones go; other files, and those of later units from before a clear, are left alone."""
    folder = CheckpointFolder(tmp_path / "new", ".pt")
    for unit in (0, 1, 9):
        folder.write(unit, lambda path: path.write_text("before the clear"))
    (tmp_path / "new" / "notes.pt").touch()
    for unit in range(4):
        written = folder.write(unit, lambda path: path.write_text("after it"))
        assert written.read_text() == "after it"
    assert names(tmp_path / "new") == ["notes.pt", "unit-000002.pt", "unit-000003.pt", "unit-000009.pt"]


def test_a_checkpoint_is_whole_or_not_there(tmp_path: Path) -> None:
    """A training that dies while it writes leaves the checkpoints before it as they were."""
    folder = CheckpointFolder(tmp_path, ".pt")
    first = folder.write(0, lambda path: path.write_text("whole"))

    def die(path: Path) -> None:
        path.write_text("ha")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        folder.write(0, die)
    with pytest.raises(OSError, match="no space"):
        folder.write(1, die)
    assert first.read_text() == "whole"
    assert not folder.path(1).exists()
