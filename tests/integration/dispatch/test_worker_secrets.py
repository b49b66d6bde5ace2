"""A node's credential and the tasks beside it: nothing of it is in a task's reach."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SECRET = "credential-of-this-test-0123456789"
BROKER = "redis://:password-of-the-broker@127.0.0.1:1/0"

# A worker: takes the credential, closes itself, and starts a "task" with a program of its own, as the
# forkserver does. The task looks for the credential wherever its user may look.
WORKER = """
import ctypes, os, subprocess, sys
sys.path.insert(0, {root!r})
from airflow_provider_eaco.provider import worker_secrets as secrets
credential = secrets.take_credential({file!r})
assert credential == {secret!r}, credential
secrets.give_up_root({user!r})
secrets.close_memory()
secrets.drop_secrets(os.environ)
held = [credential]  # in memory, as in a worker
sys.exit(subprocess.run([{python!r}, "-I", "-c", {task!r}, {file!r} or "/"]).returncode)
"""
TASK = """
import os, sys
needles = [b"credential-of-this-test", b"password-of-the-broker"]
found = []
def look(what, read):
    try:
        if any(needle in read() for needle in needles):
            found.append(what)
    except OSError:
        pass
def content(path):
    with open(path, "rb") as file:
        return file.read(2**20)
def memory(pid):
    seen = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            where, mode = line.split()[:2]
            begin, end = (int(part, 16) for part in where.split("-"))
            if mode.startswith("rw") and end - begin < 2**28:
                try:
                    mem.seek(begin)
                    part = mem.read(end - begin)
                except (OSError, ValueError, OverflowError):
                    continue
                seen += [needle for needle in needles if needle in part]
    return b" ".join(seen)
def handles(pid):
    for handle in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{handle}"
        if os.path.isfile(path):
            look(path, lambda: content(path))
look("its environment", lambda: b"".join(os.environb.values()))
look(sys.argv[1], lambda: content(sys.argv[1]))
worker = os.getppid()
for name in ("environ", "cmdline"):
    look(name, lambda: content(f"/proc/{worker}/{name}"))
look("memory", lambda: memory(worker))
try:
    handles(worker)
except OSError:
    pass
print(*found, sep=", ")
sys.exit(1 if found else 0)
"""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A user without rights, and an interpreter that it may run."""

    name: str
    python: str


@pytest.fixture(scope="module")
def stranger() -> Stranger:
    """Whom a worker becomes that gives up root."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    entry = pwd.getpwnam("nobody")
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            command = [python, "-I", "-c", ""]
            if subprocess.run(command, user=entry.pw_uid, group=entry.pw_gid, check=False).returncode == 0:
                return Stranger(entry.pw_name, python)
    pytest.skip("user nobody can run no Python here")


def run_worker(
    file: Path | None, stranger: Stranger | None, environment: dict[str, str], worker: str = WORKER
) -> subprocess.CompletedProcess[str]:
    code = worker.format(
        root=str(ROOT),
        file=None if file is None else str(file),
        secret=SECRET,
        user=None if stranger is None else stranger.name,
        python=sys.executable if stranger is None else stranger.python,
        task=TASK,
    )
    # A file that only this user reads, since the command line of a process is open to all.
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(code)
        script.flush()
        return _run(script.name, environment)


def _run(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script],
        env={**os.environ, "AIRFLOW__CELERY__BROKER_URL": BROKER, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def credential_file(folder: Path) -> Path:
    file = folder / "credential"
    file.touch(mode=0o600)
    file.write_text(f"{SECRET}\n")
    return file


def test_a_task_finds_nothing_of_a_credential_from_a_variable(stranger: Stranger) -> None:
    """Given by a variable, it is in no environment afterwards, nor where an unprivileged task could look."""
    done = run_worker(None, stranger, {"EACO_NODE_CREDENTIAL": SECRET})
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_task_finds_nothing_of_a_credential_from_a_file(stranger: Stranger, tmp_path: Path) -> None:
    """Given by a file of root's, it cannot be read by a task once the worker has given up root."""
    done = run_worker(credential_file(tmp_path), stranger, {})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("measure", "instead"),
    [
        pytest.param("secrets.close_memory()", "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)", id="memory"),
        pytest.param("secrets.drop_secrets(os.environ)", "pass", id="environment"),
    ],
)
def test_the_search_finds_what_is_left_open(
    measure: str, instead: str, stranger: Stranger, tmp_path: Path
) -> None:
    """Without one of the measures the same task does find something: the search is a real one."""
    open_worker = WORKER.replace(measure, instead)
    done = run_worker(credential_file(tmp_path), stranger, {}, open_worker)
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read"), ("", "holds no credential"), ("a b", "holds no credential")],
)
def test_a_file_without_a_credential_is_named(content: str | None, says: str, tmp_path: Path) -> None:
    """A worker without a credential says which file is wrong, and what makes a credential."""
    file = tmp_path / "credential"
    if content is not None:
        file.write_text(content)
    done = run_worker(file, None, {})
    assert done.returncode != 0
    assert says in done.stderr
    assert str(file) in done.stderr
