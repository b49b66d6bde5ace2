"""Process groups as the kernel shows them: who belongs to a job, and who is still alive.

A job's processes hang below its keeper (:mod:`airflow_provider_eaco.dispatch.keeper`), a session leader and
child subreaper. Members are the keeper, everything in its session, all descendants, and every process that
carries the job's markers in its environment. All is read from ``/proc``; Linux 5.3 or later.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from airflow_provider_eaco.dispatch.environment import JOB_ID_VARIABLE, LEASE_TOKEN_VARIABLE

_PROC = Path("/proc")
_DEAD_STATES = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Process:
    """One process as ``/proc/PID/stat`` shows it. ``start_ticks`` (clock ticks since boot) with the pid
    identify it: a pid alone is used again.
    """

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether it still runs or can run; a zombie holds nothing but its exit code."""
        return self.state not in _DEAD_STATES

    def is_same(self, other: Process | None) -> bool:
        return other is not None and (self.pid, self.start_ticks) == (other.pid, other.start_ticks)


@dataclass(frozen=True, slots=True)
class ProcessReference:
    """How to find a job's processes again, also from another process and after a restart of the caller.

    ``boot`` tells one start of the machine from the next, when pids and ticks begin anew. ``host`` and
    ``boot`` together name the place; ``job_id`` and ``token`` are the markers in the environment.
    """

    pid: int
    start_ticks: int
    host: str
    boot: str
    token: int
    job_id: str

    @classmethod
    def here(cls, pid: int, start_ticks: int, token: int, job_id: str) -> ProcessReference:
        """Return the reference of a process of this host."""
        return cls(pid, start_ticks, socket.gethostname(), boot_id(), token, job_id)

    @classmethod
    def parse(cls, text: str) -> ProcessReference:
        """Read what ``str()`` of a reference gave.

        :raises ValueError: for any other text.
        """
        try:
            pid, start_ticks, host, boot, token, job_id = text.split(":", 5)
            return cls(int(pid), int(start_ticks), host, boot, int(token), job_id)
        except ValueError:
            raise ValueError(
                f"reference: {text!r} is not of the form pid:start_ticks:host:boot:token:job_id"
            ) from None

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}:{self.host}:{self.boot}:{self.token}:{self.job_id}"

    @property
    def on_this_host(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def is_in_reach(self) -> bool:
        """Whether it can be followed from here."""
        return self.on_this_host

    @property
    def since_this_boot(self) -> bool:
        return self.boot == boot_id()

    def leader(self) -> Process | None:
        """Return the keeper if it is alive; never another process that got its pid later."""
        process = read_process(self.pid)
        if process is None or process.start_ticks != self.start_ticks or not process.alive:
            return None
        return process


@cache
def boot_id() -> str:
    """Return a short text that is another one after each start of this machine."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]


def read_process(pid: int) -> Process | None:
    """Return the process as it is now, or ``None`` when there is none with this pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - read once per process and second
            line = stat.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in parentheses and may hold anything, parentheses and blanks included.
    fields = line[line.rindex(b")") + 2 :].split()
    return Process(pid, fields[0].decode("ascii"), int(fields[1]), int(fields[3]), int(fields[19]))


def read_processes() -> dict[int, Process]:
    """Return every process of this machine (of this pid namespace) by pid: one pass over ``/proc``."""
    found = (read_process(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return {process.pid: process for process in found if process is not None}


def members_of(reference: ProcessReference, processes: Mapping[int, Process]) -> dict[int, Process]:
    """Return the living members of the job by pid, its keeper included, out of ``processes``."""
    leader = processes.get(reference.pid)
    is_leader_there = leader is not None and leader.start_ticks == reference.start_ticks
    # A pid stays taken while it names a session with members. If another process has it now, our session
    # had emptied before, and the session of that number is somebody else's.
    is_session_ours = leader is None or is_leader_there
    roots = {
        process.pid
        for process in processes.values()
        if (is_session_ours and process.session == reference.pid) or _is_marked(process, reference)
    }
    if is_leader_there:
        roots.add(reference.pid)
    found = {pid: processes[pid] for pid in roots | descendants_of(roots, processes)}
    return {pid: process for pid, process in found.items() if process.alive and pid != os.getpid()}


def descendants_of(roots: Iterable[int], processes: Mapping[int, Process]) -> set[int]:
    """Return the pids of all children, their children and so on; the roots themselves not included."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    unvisited = list(roots)
    while unvisited:
        new = [pid for pid in children.get(unvisited.pop(), ()) if pid not in found]
        found.update(new)
        unvisited += new
    return found - set(roots)


def _is_marked(process: Process, reference: ProcessReference) -> bool:
    if process.start_ticks < reference.start_ticks or not process.alive:
        return False
    variables = variables_of(process.pid)
    markers = (f"{JOB_ID_VARIABLE}={reference.job_id}", f"{LEASE_TOKEN_VARIABLE}={reference.token}")
    return all(os.fsencode(marker) in variables for marker in markers)


def variables_of(pid: int) -> list[bytes]:
    """Return the lines of the environment that the process was started with; none if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone in the meantime, or of another user
        return []


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process; nothing happens if it is gone, belongs to another user, or its pid
    has been taken by another one.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        # The handle names whoever has the pid now; once it is open, the pid's owner can no longer change.
        if process.is_same(read_process(process.pid)):
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(handle)
