"""A file is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_eaco.simulator.whole_file import whole_file


def test_the_name_appears_at_the_end(tmp_path: Path) -> None:
    """While it is written the file has another name; afterwards only its own."""
    path = tmp_path / "deep" / "file.csv"
    with whole_file(path) as partial:
        partial.write_text("all of it")
        assert not path.exists()
    assert path.read_text() == "all of it"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    """After a failure in the middle the older file stands and nothing half written is left."""
    path = tmp_path / "file.csv"
    path.write_text("older")

    def fail() -> None:
        with whole_file(path) as partial:
            partial.write_text("half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_before_the_first_byte(tmp_path: Path) -> None:
    """A failure before anything was written hides nothing of its cause."""

    def fail() -> None:
        with whole_file(tmp_path / "file.csv"):
            raise RuntimeError("nothing yet")

    with pytest.raises(RuntimeError, match="nothing yet"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_nothing_written_is_an_error(tmp_path: Path) -> None:
    """A writer that forgets to write does not leave an empty file that looks whole."""

    def forget() -> None:
        with whole_file(tmp_path / "file.csv"):
            pass

    with pytest.raises(FileNotFoundError):
        forget()
