"""Which job of ours a process belongs to: what a meter asks that sees processes on a GPU.

A job's processes hang below its keeper, are in its session, or carry the job's markers in the environment
they were started with (:mod:`.process_group`). Answers are kept as long as the process lives.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from functools import lru_cache

from airflow_provider_eaco.dispatch.claim import claimant
from airflow_provider_eaco.dispatch.environment import JOB_ID_VARIABLE, LEASE_TOKEN_VARIABLE
from airflow_provider_eaco.dispatch.process_group import Process, read_process, variables_of

# NVIDIA's own servers (MPS) work for whoever is their client; a kernel's name of a process has 15 characters.
_SERVERS = ("nvidia-cuda-mps",)
# Deeper than any tree of processes that a training makes.
_MOST_ANCESTORS = 64
# The inode of the machine's own PID namespace (PROC_PID_INIT_INO of Linux): there a driver's pids are ours.
_HOST_NAMESPACE = 0xEFFFFFFC

Run = tuple[str, int]
NOBODY: Run = ("", 0)


class ProcessOwners:
    """Remembers keepers and the processes below them; for one thread at a time."""

    def __init__(self) -> None:
        self._keepers: dict[Run, Process] = {}
        self._known: dict[int, tuple[int, Run | None]] = {}

    def owners_of(self, pids: Collection[int], runs: Collection[Run]) -> Mapping[int, Run | None]:
        """Return the job and lease token that each process belongs to, ``None`` for one that is not ours.

        Left out are processes that cannot be seen from here. A server of the driver belongs to
        :data:`NOBODY`. One that has just ended is still told by what was known of it. Never raises.

        :param runs: the job ids and tokens of the leases on this machine.
        """
        if not pids:
            return {}
        keepers = self._find_keepers(runs)
        found: dict[int, Run | None] = {}
        known: dict[int, tuple[int, Run | None]] = {}
        for pid in pids:
            process = _read(pid)
            before = self._known.get(pid)
            if process is None:
                if before is not None:
                    found[pid] = before[1]
                continue
            if before is None or before[0] != process.start_ticks or before[1] is None:
                before = process.start_ticks, _owner_of(process, keepers)
            known[pid] = before
            found[pid] = before[1]
        self._known = known
        return found

    def users_of(self, pids: Collection[int]) -> Mapping[int, str]:
        """Return the user that each of these processes runs as, as far as that can be read. Never raises.

        In a PID namespace of its own a container knows nobody: the pids that a driver tells are the host's,
        and may be those of others here.
        """
        found: dict[int, str] = {}
        try:
            if os.stat("/proc/self/ns/pid").st_ino != _HOST_NAMESPACE:  # noqa: PTH116 - as read_process
                return found
        except OSError:
            return found
        for pid in pids:
            try:
                found[pid] = _name_of(os.stat(f"/proc/{pid}").st_uid)  # noqa: PTH116
            except OSError:
                continue
        return found

    def _find_keepers(self, runs: Collection[Run]) -> dict[int, Run]:
        """Return the runs by the pid of their keeper."""
        living: dict[Run, Process] = {}
        for run in runs:
            keeper = self._keepers.get(run)
            if keeper is None or not keeper.is_same(_read(keeper.pid)):
                keeper = _keeper_of(run)
            if keeper is not None:
                living[run] = keeper
        self._keepers = living
        return {keeper.pid: run for run, keeper in living.items()}


@lru_cache(maxsize=1024)
def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return f"uid {uid}"


def _keeper_of(run: Run) -> Process | None:
    try:
        pid = claimant(*run)
    except OSError:
        return None
    return None if pid is None else _read(pid)


def _owner_of(process: Process, keepers: Mapping[int, Run]) -> Run | None:
    present: Process | None = process
    for _ in range(_MOST_ANCESTORS):
        if present is None or present.pid <= 1:
            break
        owner = keepers.get(present.pid) or keepers.get(present.session) or _marked(present.pid)
        if owner is not None:
            return owner
        present = _read(present.parent)
    return NOBODY if _is_server(process.pid) else None


def _marked(pid: int) -> Run | None:
    lines = (os.fsdecode(line).partition("=") for line in variables_of(pid) if line.startswith(b"EACO_"))
    environment = {name: value for name, _, value in lines}
    job_id, token = environment.get(JOB_ID_VARIABLE), environment.get(LEASE_TOKEN_VARIABLE, "")
    return (job_id, int(token)) if job_id and token.isdecimal() else None


def _is_server(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:  # noqa: PTH123 - as read_process
            return name.read().strip() in _SERVERS
    except OSError:
        return False


def _read(pid: int) -> Process | None:
    try:
        return read_process(pid)
    except OSError:
        return None
