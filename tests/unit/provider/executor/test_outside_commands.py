"""Commands of the operator: without a shell, never waited for, ended in time with all that they started."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_eaco.provider.outside_commands import Finished, OutsideCommands

DEADLINE_S = 30.0


def until(holds: Callable[[], object]) -> object:
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return found


def run(*command: str, timeout_s: float = DEADLINE_S) -> Finished:
    commands = OutsideCommands()
    assert commands.begin("n1", command, timeout_s) is None
    assert commands.is_running("n1")
    finished = until(lambda: commands.finished("n1"))
    assert isinstance(finished, Finished)
    assert (commands.is_running("n1"), commands.finished("n1")) == (False, None)
    return finished


def test_words_reach_the_program_as_they_are(tmp_path: Path) -> None:
    """Nothing is expanded, split or redirected."""
    path = tmp_path / "words"
    words = ["$HOME", "a b", ";", ">x", "*"]
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(repr(sys.argv[2:]))"
    assert run(sys.executable, "-c", code, str(path), *words) == Finished(True)
    assert path.read_text() == repr(words)


def test_a_failure_is_told_with_what_the_command_said() -> None:
    """The end of both its outputs, at most so much of it."""
    code = "import sys; print('x' * 5000); sys.exit('no such host')"
    finished = run(sys.executable, "-c", code)
    assert not finished.succeeded
    assert finished.cause.startswith("it ended with code 1: ")
    assert finished.cause.endswith("no such host")
    assert len(finished.cause) < 600


def test_a_program_that_cannot_be_run_is_told_at_once() -> None:
    """Nothing runs then."""
    commands = OutsideCommands()
    assert "No such file" in str(commands.begin("n1", ["/nonexistent/wake"], 1.0))
    assert not commands.is_running("n1")


def test_a_command_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    """Whoever it has started goes with it."""
    path = tmp_path / "pid"
    code = (
        "import subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "new = pathlib.Path(sys.argv[1] + '.new')\n"
        "new.write_text(str(child.pid)); new.rename(sys.argv[1]); time.sleep(600)"
    )
    now_s = [0.0]
    commands = OutsideCommands(lambda: now_s[0])
    commands.begin("n1", [sys.executable, "-c", code, str(path)], 5.0)
    until(path.exists)
    now_s[0] = 5.0
    assert commands.finished("n1") is None
    now_s[0] = 5.1
    finished = until(lambda: commands.finished("n1"))
    assert finished == Finished(False, "it did not end within 5 s")

    def is_gone() -> bool:
        try:
            state = Path(f"/proc/{int(path.read_text())}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state == "Z"

    until(is_gone)


def test_commands_of_several_names_run_beside_each_other() -> None:
    """What one does keeps no other."""
    commands = OutsideCommands()
    commands.begin("n1", [sys.executable, "-c", "import time; time.sleep(600)"], DEADLINE_S)
    commands.begin("n2", [sys.executable, "-c", ""], DEADLINE_S)
    assert until(lambda: commands.finished("n2")) == Finished(True)
    assert commands.finished("n1") is None
    os.killpg(commands._running["n1"].process.pid, 9)
    finished = until(lambda: commands.finished("n1"))
    assert finished == Finished(False, "it ended with code -9")


@pytest.mark.parametrize("name", ["n1", "other"])
def test_nothing_is_told_of_what_was_never_begun(name: str) -> None:
    """No command, no end."""
    assert OutsideCommands().finished(name) is None
