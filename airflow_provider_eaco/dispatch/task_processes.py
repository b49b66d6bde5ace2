"""Which Airflow task a process belongs to that nobody of ours has started.

Airflow's task runner, the child of every supervisor whatever the executor, names itself
``airflow worker -- ID`` with the id of its task instance before it loads the task. What a task starts hangs
below that process, and what it forks carries the same name. A process without such an ancestor is nobody's:
nothing else about it is taken for a sign.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_eaco.dispatch.process_group import Process, boot_id, read_process

_TITLE = re.compile(rb"airflow worker -- ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
# Deeper than any tree of processes that a training makes.
_MOST_ANCESTORS = 64
# A task that runs as another user is a child of sudo, which has the pid that Airflow knows.
_PIDS = 4
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class TaskProcess:
    """The process of one task try. ``job_id`` is the id of the task instance; ``pids`` are its pid and those
    of the processes above it, the nearest first, each as its own namespace counts it.
    """

    job_id: str
    pid: int
    start_ticks: int
    pids: tuple[int, ...]

    @property
    def name(self) -> str:
        """A text that no other process of this machine has or had."""
        return f"{self.pid}:{self.start_ticks}:{boot_id()}"

    @property
    def age_s(self) -> float:
        """Seconds since it was started."""
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / _TICKS_PER_S)

    @property
    def alive(self) -> bool:
        """Whether it lives; a zombie does not."""
        process = _read(self.pid)
        return process is not None and process.start_ticks == self.start_ticks and process.alive


class TaskProcesses:
    """Finds them, and remembers what it has found as long as the process lives; for one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, TaskProcess]] = {}

    def task_of(self, pid: int) -> TaskProcess | None:
        """Return the task that the process belongs to; ``None`` for none, or if it cannot be seen from here.

        Never raises.
        """
        process = _read(pid)
        if process is None:
            self._known.pop(pid, None)
            return None
        known = self._known.get(pid)
        if known is not None and known[0] == process.start_ticks:
            return known[1]
        found = _task_above(process)
        if found is None:
            self._known.pop(pid, None)
        else:
            self._known[pid] = process.start_ticks, found
        return found

    def keep(self, pids: set[int]) -> None:
        """Forget all other processes."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}


def _task_above(process: Process) -> TaskProcess | None:
    """Return the task of the nearest process with a task's name, and of those with that name the topmost."""
    job_id, root = None, process
    present: Process | None = process
    for _ in range(_MOST_ANCESTORS):
        if present is None or present.pid <= 1:
            break
        named = _task_named(present.pid)
        if named is not None and job_id in {None, named}:
            job_id, root = named, present
        elif job_id is not None:
            break
        present = _read(present.parent)
    if job_id is None:
        return None
    return TaskProcess(job_id, root.pid, root.start_ticks, _pids_above(root))


def _task_named(pid: int) -> str | None:
    try:
        found = _TITLE.match(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return None
    return None if found is None else found[1].decode("ascii")


def _pids_above(root: Process) -> tuple[int, ...]:
    pids: list[int] = []
    present: Process | None = root
    while present is not None and present.pid > 1 and len(pids) < _PIDS:
        pids.append(_own_pid(present.pid))
        present = _read(present.parent)
    return tuple(pids)


def _own_pid(pid: int) -> int:
    """Return the pid by which the process knows itself; in a container that is another one than here."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        numbers = next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
        return int(numbers[-1])
    except (OSError, StopIteration, ValueError, IndexError):
        return pid


def _read(pid: int) -> Process | None:
    try:
        return read_process(pid)
    except OSError:
        return None
