"""The register of runs on a node's disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_eaco.provider.worker_register import RunRegister, WorkerRunsError


def test_it_remembers_over_a_restart(tmp_path: Path) -> None:
    """What was added and not dropped is there for the next worker."""
    register = RunRegister(tmp_path / "eaco", "gpu-1")
    register.add(("a", 1))
    register.add(("b", 2))
    register.drop([("a", 1), ("unknown", 9)])
    register.close()
    with closing(RunRegister(tmp_path / "eaco", "gpu-1")) as next_one:
        assert next_one.runs == {("b", 2)}


def test_one_worker_at_a_time(tmp_path: Path) -> None:
    """A second worker of the node on the same machine is refused; one of another node is not."""
    first = RunRegister(tmp_path, "gpu-1")
    with pytest.raises(WorkerRunsError, match="runs on this machine already"):
        RunRegister(tmp_path, "gpu-1")
    RunRegister(tmp_path, "gpu-2").close()
    first.close()
    RunRegister(tmp_path, "gpu-1").close()


@pytest.mark.parametrize("content", ["", "{", '[["a"]]', '{"a": 1}', "7"])
def test_a_damaged_file_is_an_empty_one(content: str, tmp_path: Path) -> None:
    """A worker starts whatever is in the file; the API tells it what should run."""
    (tmp_path / "worker-gpu-1.json").write_text(content)
    with closing(RunRegister(tmp_path, "gpu-1")) as register:
        assert register.runs == frozenset()


def test_what_cannot_be_written_does_not_begin(tmp_path: Path) -> None:
    """A full disk is told before the start."""
    (tmp_path / "worker-gpu-1.new").mkdir()
    with closing(RunRegister(tmp_path, "gpu-1")) as register:
        with pytest.raises(OSError, match="worker-gpu-1"):
            register.add(("a", 1))
        assert register.runs == frozenset()
