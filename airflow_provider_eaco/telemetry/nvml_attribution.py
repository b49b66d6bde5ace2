"""Whose are the processes and the memory on a GPU: those of our runs, or somebody else's. Pure.

Where the list of processes cannot be read, or shows those of another process namespace, memory that is in use
is still in use: a GPU that nobody of ours holds is then somebody else's, and of one that is held it is
unknown who holds what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from airflow_provider_eaco.core.energy.accounting import RunKey
from airflow_provider_eaco.core.model.gpu import ForeignProcess
from airflow_provider_eaco.telemetry.nvml_sample import MemoryUse, ProcessUse

# An idle driver may use some memory beyond its reserve; up to this much without a process is nobody's.
DRIVER_MIB = 128
# Memory of a run that has ended counts as back once no more than this part of the GPU is unaccounted for.
BACK_PART = 0.01
# Seconds for which a living process of a run that holds no GPU is not looked at: the run may be on its way
# out, or one that another scheduler has begun and of which this meter hears with its next heartbeat.
UNLEASED_S = 10.0
# So many foreign processes of one GPU are named; a report and a row stay small.
MOST_NAMED = 8

NOBODY: RunKey = ("", 0)


class ProcessTable(Protocol):
    """Knows the processes of this machine."""

    def owners_of(self, pids: Collection[int], runs: Collection[RunKey]) -> Mapping[int, RunKey | None]:
        """Return the run that each of these processes belongs to, ``None`` for one that is none of ours.

        A process that cannot be seen from here (another namespace) is left out; a server of the driver, which
        works for others, belongs to no run (``("", 0)``) and is no stranger either. Never raises.

        :param runs: the runs that may have processes here.
        """

    def users_of(self, pids: Collection[int]) -> Mapping[int, str]:
        """Return the user that each of these processes runs as, as far as that can be read. Never raises."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who uses one GPU or partition; ``None`` is unknown.

    ``memory_mib`` and ``sm_pct`` are by run. ``foreign_processes`` are those that compute, ``strangers_pct``
    is their SM time: ``None`` without any, 0 where it is not known. ``trespassers`` are our runs that use the
    GPU without holding it; they count as foreign. ``foreign_by`` are the foreign processes by pid, at most
    :data:`MOST_NAMED` of them, and rather those that compute.
    """

    memory_mib: Mapping[RunKey, int | None] = field(default_factory=dict)
    sm_pct: Mapping[RunKey, float] | None = None
    foreign_memory_mib: int | None = None
    foreign_processes: int | None = None
    strangers_pct: float | None = None
    trespassers: frozenset[RunKey] = frozenset()
    foreign_by: tuple[ForeignProcess, ...] = ()


class Unleased:
    """Remembers since when runs without a GPU of their own were seen to have processes on one."""

    def __init__(self) -> None:
        self._since_s: dict[RunKey, float] = {}

    def left_behind(
        self, owners: Mapping[int, RunKey | None], active: Collection[RunKey], now_s: float
    ) -> frozenset[RunKey]:
        """Return the runs whose processes are still there :data:`UNLEASED_S` after they were first seen so:
        nobody looks after them any more, and what they hold is as much in the way as a stranger's (C28).
        """
        seen = {owner for owner in owners.values() if owner not in {None, NOBODY} and owner not in active}
        self._since_s = {run: self._since_s.get(run, now_s) for run in seen if run is not None}
        return frozenset(run for run, since_s in self._since_s.items() if now_s - since_s > UNLEASED_S)


def attribute(
    processes: Sequence[ProcessUse] | None,
    memory: MemoryUse | None,
    owners: Mapping[int, RunKey | None],
    holders: Collection[RunKey],
    active: Collection[RunKey],
) -> Attribution:
    """Return who uses a GPU.

    :param processes: those on it, ``None`` if they cannot be listed.
    :param owners: as :meth:`ProcessTable.owners_of` answers.
    :param holders: the runs that hold it.
    :param active: the runs whose processes belong to GPUs that they hold: those that hold any, and those that
        were left behind. A process of any other run is on its way out.
    """
    if processes is None or _is_another_world(processes, owners, holders):
        unlisted_mib = None if holders else _beyond_driver(used_beside_reserve_mib(memory))
        return Attribution(foreign_memory_mib=unlisted_mib)
    own, foreign = [], []
    trespassers = set()
    for process in processes:
        owner = owners.get(process.pid)
        if owner is None or (owner in active and owner not in holders):
            foreign.append(process)
            trespassers |= set() if owner is None else {owner}
        else:
            own.append((owner, process))
    computing = [process for process in foreign if process.is_compute]
    return Attribution(
        memory_mib=_by_run(own),
        sm_pct=_sm_by_run(own, holders),
        foreign_memory_mib=_foreign_mib(foreign, [process for _, process in own], memory, bool(holders)),
        foreign_processes=len(computing),
        strangers_pct=math.fsum(process.sm_pct or 0.0 for process in computing) if computing else None,
        trespassers=frozenset(trespassers),
        foreign_by=_named(foreign),
    )


def with_users(
    uses: Mapping[str, Attribution], users_of: Callable[[Collection[int]], Mapping[int, str]]
) -> dict[str, Attribution]:
    """Return the same with the users of foreign processes; where there are none, nobody is asked."""
    pids = {each.pid for use in uses.values() for each in use.foreign_by}
    users = users_of(pids) if pids else {}
    return {
        uuid: replace(
            use, foreign_by=tuple(replace(each, user=users.get(each.pid)) for each in use.foreign_by)
        )
        for uuid, use in uses.items()
    }


def _named(foreign: Sequence[ProcessUse]) -> tuple[ForeignProcess, ...]:
    chosen = sorted(foreign, key=lambda process: (not process.is_compute, process.pid))[:MOST_NAMED]
    return tuple(ForeignProcess(pid) for pid in sorted({process.pid for process in chosen}))


def _is_another_world(
    processes: Sequence[ProcessUse], owners: Mapping[int, RunKey | None], holders: Collection[RunKey]
) -> bool:
    """Tell whether the pids are of a namespace that cannot be seen from here: ours may be among them."""
    return bool(holders) and bool(processes) and all(process.pid not in owners for process in processes)


def _by_run(own: Sequence[tuple[RunKey, ProcessUse]]) -> dict[RunKey, int | None]:
    found: dict[RunKey, int | None] = {}
    for key, process in own:
        before = found.get(key, 0)
        found[key] = None if before is None or process.memory_mib is None else before + process.memory_mib
    return found


def _sm_by_run(
    own: Sequence[tuple[RunKey, ProcessUse]], holders: Collection[RunKey]
) -> dict[RunKey, float] | None:
    found = dict.fromkeys(holders, 0.0)
    for key, process in own:
        if process.sm_pct is None:
            return None
        found[key] = found.get(key, 0.0) + process.sm_pct
    return found


def _foreign_mib(
    foreign: Sequence[ProcessUse], own: Sequence[ProcessUse], memory: MemoryUse | None, is_held: bool
) -> int | None:
    listed_mib = sum(process.memory_mib or 0 for process in foreign)
    all_listed = all(process.memory_mib is not None for process in foreign)
    if is_held and all_listed:
        return listed_mib
    used_mib = used_beside_reserve_mib(memory)
    if used_mib is None or any(process.memory_mib is None for process in own):
        return listed_mib if all_listed else None
    rest_mib = used_mib - sum(process.memory_mib or 0 for process in own)
    return max(listed_mib, rest_mib if foreign else _beyond_driver(rest_mib) or 0)


def used_beside_reserve_mib(memory: MemoryUse | None) -> int | None:
    """Return what is in use without the driver's reserve, ``None`` where they cannot be told apart."""
    return None if memory is None or memory.reserved_mib is None else memory.used_mib


def _beyond_driver(used_mib: int | None) -> int | None:
    return used_mib if used_mib is None or used_mib > DRIVER_MIB else 0


def is_back(
    processes: Sequence[ProcessUse] | None,
    memory: MemoryUse | None,
    owners: Mapping[int, RunKey | None],
    run: RunKey,
    *,
    is_alone: bool,
) -> bool | None:
    """Tell whether a run that has ended has left no memory behind on a GPU that it held, up to 1 % of it.

    A driver frees memory a while after the process is gone, and may list that process meanwhile. ``None``:
    nobody can tell, since not all that is used can be told by process, or the driver's own part is unknown.

    :param is_alone: no other run holds the GPU.
    """
    used_mib = used_beside_reserve_mib(memory)
    if memory is None or used_mib is None or processes is None:
        return None
    if not is_alone and processes and all(process.pid not in owners for process in processes):
        return None
    # A process that cannot be found here has just left, or is of another namespace in which the run was, too.
    others_mib = [process.memory_mib for process in processes if owners.get(process.pid, run) != run]
    known_mib = [each for each in others_mib if each is not None]
    if len(known_mib) < len(others_mib):
        return None
    return used_mib - sum(known_mib) <= max(DRIVER_MIB, memory.total_mib * BACK_PART)
