"""The tasks of other executors on one machine's GPUs: which there are, on which, and when they ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import Occupant, RunMeter

# A training of several GPUs takes them one after the other; one that ended before is told all the same.
SETTLE_S = 5.0
# What is left of an ended task is told for so long: its last second is measured after its end, and Airflow
# learns how it ended later than its process is gone.
LEFT_KEPT_S = 60.0

Run = tuple[str, int]


class FoundTask(Protocol):
    """The process of one task try, as :mod:`airflow_provider_eaco.dispatch.task_processes` finds it."""

    @property
    def job_id(self) -> str: ...

    @property
    def pids(self) -> tuple[int, ...]: ...

    @property
    def name(self) -> str: ...

    @property
    def age_s(self) -> float: ...

    @property
    def alive(self) -> bool: ...


class Finder(Protocol):
    """Tells whose a process is."""

    def task_of(self, pid: int) -> FoundTask | None: ...

    def keep(self, pids: set[int]) -> None: ...


class ProcessTable(Protocol):
    """Tells which of some processes can be seen from here, which are the driver's own servers, and as which
    user each runs.
    """

    def owners_of(self, pids: Collection[int], runs: Collection[Run]) -> Mapping[int, Run | None]: ...

    def users_of(self, pids: Collection[int]) -> Mapping[int, str]: ...


@dataclass(slots=True)
class SampledTask:
    """One task try; instants are of the steady clock, ``started_s`` is since the epoch.

    ``token`` is the meter's name for it, of no meaning elsewhere. ``present`` are the GPUs that it uses now,
    ``gpu_uuids`` the same or, where it uses none, those that it used last. ``is_refused``: the API does not
    want it, so that it is a stranger here. ``alone``: it has shared no GPU with another process that computes
    so far, and it was always known who is there.
    """

    found: FoundTask
    token: int
    started_s: float
    from_start: bool
    present: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    changed_s: float = 0.0
    ended_s: float | None = None
    is_refused: bool = False
    alone: bool = True
    meter: RunMeter | None = None

    @property
    def run(self) -> Run:
        return self.found.job_id, self.token

    def is_due(self, now_s: float, settle_s: float) -> bool:
        """Tell whether the API is to hear of it."""
        settled = self.ended_s is not None or now_s - self.changed_s >= settle_s
        return settled and not self.is_refused and bool(self.gpu_uuids)


class TaskTable:
    """Every task try that was seen on a GPU of this machine and is not forgotten yet. Safe for two threads.

    :param visible: see :class:`ProcessTable`.
    :param settle_s: how long a living task has to use the same GPUs before it is told of.
    """

    def __init__(
        self,
        node: str,
        finder: Finder,
        visible: ProcessTable,
        *,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._finder = finder
        self._visible = visible
        self._settle_s = settle_s
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._tasks: dict[str, SampledTask] = {}
        self._tokens = 0
        self._began_s = clock()

    def look(self, pids_by_gpu: Mapping[str, Iterable[int] | None]) -> tuple[Occupant, ...]:
        """Take one look in and return who holds which GPUs now.

        Of a GPU with ``None``, and of one that is left out, it is not known who is there. A task that was on
        such a GPU counts as being there still, as long as it lives.
        """
        with self._lock:
            # By GPU, whose processes compute there; None for strangers.
            there: dict[str, set[str | None]] = {}
            for uuid, pids in pids_by_gpu.items():
                owners = [self._task_of(pid) for pid in pids or ()]
                there[uuid] = {None if task is None else task.found.name for task in owners}
            if pids_by_gpu and None not in pids_by_gpu.values():
                self._finder.keep({pid for pids in pids_by_gpu.values() for pid in pids or ()})
            for name, task in self._tasks.items():
                still = {uuid for uuid in task.present if pids_by_gpu.get(uuid) is None}
                seen = {uuid for uuid, names in there.items() if name in names}
                if still or any(there[uuid] != {name} for uuid in seen):
                    task.alone = False
                self._note(task, seen | still)
            return tuple(map(self._occupant, filter(_holds, self._tasks.values())))

    def owners_of(self, pids: Collection[int], runs: Collection[Run]) -> Mapping[int, Run | None]:
        """Return the task of each process, as a meter asks for it; strangers belong to ``None``."""
        # A run that an executor of ours has begun is not one of those that are watched here.
        visible = self._visible.owners_of(pids, ())
        with self._lock:
            found = {pid: None if owner is None or owner[0] else owner for pid, owner in visible.items()}
            for pid in found:
                task = self._task_of(pid)
                if task is not None and not task.is_refused:
                    found[pid] = task.run
            return found

    def users_of(self, pids: Collection[int]) -> Mapping[int, str]:
        """Return the user that each of these processes runs as, as far as that can be read."""
        return self._visible.users_of(pids)

    def tasks(self) -> Sequence[SampledTask]:
        """Return all that are not forgotten, oldest first."""
        with self._lock:
            return tuple(self._tasks.values())

    def due(self) -> list[SampledTask]:
        """Return those that the API is to hear of."""
        now_s = self._monotonic()
        return [task for task in self.tasks() if task.is_due(now_s, self._settle_s)]

    def refuse(self, job_ids: Collection[str]) -> None:
        """Take these for strangers from now on."""
        with self._lock:
            for task in self._tasks.values():
                if task.found.job_id in job_ids:
                    task.is_refused = True

    def forget(self) -> None:
        """Forget those that ended long ago."""
        now_s = self._monotonic()
        with self._lock:
            self._tasks = {
                name: task
                for name, task in self._tasks.items()
                if task.ended_s is None or now_s - task.ended_s <= LEFT_KEPT_S
            }

    def _task_of(self, pid: int) -> SampledTask | None:
        found = self._finder.task_of(pid)
        if found is None:
            return None
        task = self._tasks.get(found.name)
        # What a task has left behind, long after its own process is gone, is nobody's.
        if task is None and found.alive:
            self._tokens += 1
            started_s = self._clock() - found.age_s
            task = SampledTask(found, self._tokens, started_s, started_s >= self._began_s)
            self._tasks[found.name] = task
        return task

    def _note(self, task: SampledTask, seen: set[str]) -> None:
        if task.ended_s is not None:
            return
        if not task.found.alive:
            task.present, task.ended_s = (), self._monotonic()
            return
        task.present = tuple(sorted(seen))
        if task.present not in {(), task.gpu_uuids}:
            task.gpu_uuids, task.changed_s = task.present, self._monotonic()

    def _occupant(self, task: SampledTask) -> Occupant:
        placement = Placement(self._node, task.present)
        return Occupant(*task.run, task.found.job_id, placement, None, task.started_s)


def _holds(task: SampledTask) -> bool:
    return not task.is_refused and bool(task.present)
