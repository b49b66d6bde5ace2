"""The simulated cluster: who runs where, how far, and what the nodes draw. The truth, and nothing of beliefs.

Progress is linear between events: the rate of a job changes only when its set changes or its restart is over.
A job on a node that wakes up starts when the node is up. A job that was stopped before makes no progress in
its first 30 s, while its co-residents already count it as present.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_eaco.core.energy.configuration import SetPerformance
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState, SleepRule
from airflow_provider_eaco.core.model.profile import FamilySet, family_set
from airflow_provider_eaco.simulator.clock import instant
from airflow_provider_eaco.simulator.recording import LimitInterval, NodeInterval, Recording, RunInterval
from airflow_provider_eaco.simulator.running import Event, Happening, Place, Run
from airflow_provider_eaco.simulator.trace import TraceJob
from airflow_provider_eaco.simulator.truth import Truth
from airflow_provider_eaco.simulator.workload import epoch_s

RESTART_S = 30.0

# When, what, in which order it was expected, under which stamp it holds, and of whom.
_Expected = tuple[float, Happening, int, int, str]


class OutOfMemoryError(EacoError):
    """The newcomer does not fit beside those who are there."""


class SteeringError(EacoError):
    """A node or a GPU was told what cannot be done; the message names both."""


@dataclass(slots=True, eq=False)
class _Node:
    """``coming`` start when it is up; ``shown`` is what its present interval, begun at ``since_s``, says.
    ``limits`` has, by GPUs, the power limit in force and since when.
    """

    name: str
    gpus: int
    power: NodePowerState
    places: dict[tuple[int, ...], Place] = field(default_factory=dict)
    coming: list[tuple[Run, tuple[int, ...]]] = field(default_factory=list)
    limits: dict[tuple[int, ...], tuple[float, float]] = field(default_factory=dict)
    since_s: float = 0.0
    shown: tuple[NodePower, float] = (NodePower.IDLE, 0.0)
    stamp: int = 0


class VirtualCluster:
    """Nodes of equal size under one truth.

    :param sleep: when idle nodes go to sleep; ``None``: they never do.
    :param epochs: whether ends of epochs are events. Where nobody ever shares nothing hangs on them.
    """

    def __init__(
        self,
        truth: Truth,
        names: Sequence[str],
        gpus_per_node: int,
        sleep: SleepRule | None,
        recording: Recording,
        *,
        epochs: bool = True,
    ) -> None:
        self._truth = truth
        self._epochs = epochs
        self._sleep = sleep
        self._recording = recording
        self._events: list[_Expected] = []
        self._pushed = 0
        self._runs: dict[str, tuple[Run, _Node, tuple[int, ...]]] = {}
        self._stopped: dict[str, Run] = {}
        self._performance: dict[tuple[FamilySet, int, float | None], SetPerformance | None] = {}
        idle = NodePowerState(NodePower.IDLE, 0.0)
        self._nodes = {name: _Node(name, gpus_per_node, idle) for name in names}
        for node in self._nodes.values():
            node.shown = self._draw(node)
            self._expect_node(node)

    def next_event_s(self) -> float | None:
        """Return the instant of the next event, ``None`` if nothing happens by itself any more."""
        while self._events and not self._holds(self._events[0]):
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

    def due(self, now_s: float) -> Iterator[Event]:
        """Carry out and yield what happens by ``now_s``, in the order of :class:`Happening`.

        A job that has ended stays in its place until :meth:`remove`.
        """
        events = self._events
        while events and events[0][0] <= now_s:
            event = heapq.heappop(events)
            if not self._holds(event):
                continue
            _, happening, _, _, subject = event
            if happening is Happening.NODE:
                yield Event(happening, subject, self._change_power(self._nodes[subject], now_s))
            else:
                self._pass_point(subject, happening, now_s)
                yield Event(happening, subject)

    def pass_epochs(self, until_s: float, is_quiet: Callable[[str], bool]) -> None:
        """Pass the ends of epochs that come before anything else happens, by ``until_s`` at the latest.

        :param is_quiet: whether this job's may be passed; the first of another job stays ahead.
        """
        events = self._events
        while events and events[0][0] <= until_s:
            at_s, happening, _, _, job_id = event = events[0]
            holds = self._holds(event)
            if holds and (happening is not Happening.EPOCH or not is_quiet(job_id)):
                return
            heapq.heappop(events)
            if holds:
                self._pass_point(job_id, happening, at_s)

    def place(self, job: TraceJob, node: str, gpus: tuple[int, ...], now_s: float) -> bool:
        """Give the job these GPUs; return whether it runs, ``False`` if its node has to wake up first.

        :raises OutOfMemoryError: if it does not fit beside the others; then nothing has changed.
        """
        there = self._nodes[node]
        others = [run.job.family for run in there.places[gpus].runs] if gpus in there.places else []
        others += [run.job.family for run, wanted in there.coming if wanted == gpus]
        if self._performance_of(family_set([*others, job.family]), len(gpus)) is None:
            raise OutOfMemoryError(f"job {job.job_id} does not fit beside {', '.join(others)}")
        run = self._stopped.pop(job.job_id, None) or Run(job, epoch_s(job))
        self._runs[job.job_id] = (run, there, gpus)
        self._move_power(there, there.power.wanted(now_s))
        if there.power.power is NodePower.ACTIVE:
            self._begin(run, there, gpus, now_s)
            return True
        there.coming.append((run, gpus))
        self._show(there, now_s)
        return False

    def remove(self, job_id: str, now_s: float) -> Run:
        """Take the job off its GPUs and return it; if it is placed again it goes on where it stopped."""
        run, node, gpus = self._runs.pop(job_id)
        run.stamp += 1
        self._stopped[job_id] = run
        place = node.places.get(gpus)
        if place is None or run not in place.runs:
            node.coming = [pair for pair in node.coming if pair[0] is not run]
            self._free_limit(node, gpus, now_s)
            return run
        self._cut(node, place, now_s)
        run.resumed = True
        place.runs.remove(run)
        if place.runs:
            self._pace(node, place, now_s)
        else:
            del node.places[gpus]
            self._free_limit(node, gpus, now_s)
            if not node.places:
                self._move_power(node, node.power.vacated(now_s))
            self._show(node, now_s)
        return run

    def forget(self, job_id: str) -> None:
        """Drop what is kept of a job that will not come back."""
        self._stopped.pop(job_id, None)

    def run_of(self, job_id: str) -> Run:
        """Return the job that holds GPUs."""
        return self._runs[job_id][0]

    def sleep(self, name: str, now_s: float) -> None:
        """Put an idle node to sleep at once; one that wakes up or sleeps goes on.

        :raises SteeringError: if somebody holds GPUs of it.
        """
        node = self._nodes[name]
        if node.places or node.coming:
            raise SteeringError(f"{name} was put to sleep while jobs hold GPUs of it")
        self._move_power(node, node.power.told_to_sleep(now_s))
        self._show(node, now_s)

    def wake(self, name: str, now_s: float) -> None:
        """Wake a sleeping node; any other goes on."""
        node = self._nodes[name]
        self._move_power(node, node.power.told_to_wake(now_s))
        self._show(node, now_s)

    def limit_power(self, name: str, gpus: tuple[int, ...], limit_w: float | None, now_s: float) -> None:
        """Hold the boards of a set to that power, from now until the last of the set has left.

        :raises SteeringError: if nobody holds exactly these GPUs, or the boards know no such limit.
        """
        node = self._nodes[name]
        if gpus not in node.places and all(wanted != gpus for _, wanted in node.coming):
            raise SteeringError(f"{name}: nobody holds GPUs {gpus}, so their power cannot be limited")
        if limit_w is not None and limit_w not in self._truth.limits_w:
            known = ", ".join(f"{each:g}" for each in self._truth.limits_w) or "none"
            raise SteeringError(f"{name}: a power limit of {limit_w:g} W; known are {known} (--power-levels)")
        if limit_w == node.limits.get(gpus, (None, now_s))[0]:
            return
        place = node.places.get(gpus)
        if place is not None:
            self._cut(node, place, now_s)
        self._end_limit(node, gpus, now_s)
        if limit_w is not None:
            node.limits[gpus] = limit_w, now_s
        if place is not None:
            self._pace(node, place, now_s)

    def power_states(self) -> Mapping[str, NodePowerState]:
        """Return the power state of every node, by name."""
        return {name: node.power for name, node in self._nodes.items()}

    def power_limits(self) -> Mapping[tuple[str, tuple[int, ...]], float]:
        """Return the power limits that are in force, by node and GPUs."""
        return {
            (name, gpus): limit_w
            for name, node in self._nodes.items()
            for gpus, (limit_w, _) in node.limits.items()
        }

    def close(self, now_s: float) -> None:
        """Write the node intervals that are still open."""
        for node in self._nodes.values():
            self._write(node, now_s)

    def _holds(self, event: _Expected) -> bool:
        _, happening, _, stamp, subject = event
        if happening is Happening.NODE:
            return self._nodes[subject].stamp == stamp
        known = self._runs.get(subject)
        return known is not None and known[0].stamp == stamp

    def _push(self, at_s: float, happening: Happening, stamp: int, subject: str) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (at_s, happening, self._pushed, stamp, subject))

    def _begin(self, run: Run, node: _Node, gpus: tuple[int, ...], now_s: float) -> None:
        run.since_s = run.interval_s = run.epoch_began_s = now_s
        run.limited = False
        run.restarts_until_s = instant(now_s + RESTART_S) if run.resumed else now_s
        place = node.places.setdefault(gpus, Place(gpus))
        self._cut(node, place, now_s)
        place.runs.append(run)
        self._pace(node, place, now_s)

    def _cut(self, node: _Node, place: Place, now_s: float) -> None:
        """End the present interval of everybody there."""
        residents = tuple(sorted(run.job.job_id for run in place.runs))
        for run in place.runs:
            self._cut_run(run, node, place, residents, now_s)

    def _cut_run(self, run: Run, node: _Node, place: Place, residents: tuple[str, ...], now_s: float) -> None:
        run.advance(now_s)
        if now_s > run.interval_s:
            self._recording.runs.append(
                RunInterval(run.job.job_id, run.interval_s, now_s, node.name, place.gpus, residents, run.rate)
            )
            run.interval_s = now_s

    def _pace(self, node: _Node, place: Place, now_s: float) -> None:
        """Set everybody's rate, and the power, as the truth has it for the present set."""
        families = family_set([run.job.family for run in place.runs])
        limit_w = node.limits[place.gpus][0] if place.gpus in node.limits else None
        performance = self._performance_of(families, len(place.gpus), limit_w)
        if performance is None:
            raise OutOfMemoryError(f"{', '.join(families)} do not fit together on {node.name}")
        place.power_w = performance.power_w
        rates = dict(zip(families, performance.rates, strict=True))
        for run in place.runs:
            run.full_rate = rates[run.job.family]
            run.limited = run.limited or limit_w is not None
            run.rate = 0.0 if now_s < run.restarts_until_s else run.full_rate
            self._expect(run)
        self._show(node, now_s)

    def _performance_of(
        self, families: FamilySet, gpus: int, limit_w: float | None = None
    ) -> SetPerformance | None:
        key = families, gpus, limit_w
        if key not in self._performance:
            self._performance[key] = self._truth.performance(families, gpus, limit_w)
        return self._performance[key]

    def _free_limit(self, node: _Node, gpus: tuple[int, ...], now_s: float) -> None:
        """End the limit of GPUs that nobody holds any more."""
        if gpus in node.limits and all(wanted != gpus for _, wanted in node.coming):
            self._end_limit(node, gpus, now_s)

    def _end_limit(self, node: _Node, gpus: tuple[int, ...], now_s: float) -> None:
        limit_w, since_s = node.limits.pop(gpus, (0.0, now_s))
        if now_s > since_s:
            self._recording.limits.append(LimitInterval(node.name, gpus, since_s, now_s, limit_w))

    def _expect(self, run: Run) -> None:
        happening, at_s = run.next_point(self._epochs)
        run.stamp += 1
        self._push(max(at_s, run.since_s), happening, run.stamp, run.job.job_id)

    def _pass_point(self, job_id: str, happening: Happening, now_s: float) -> None:
        run, node, gpus = self._runs[job_id]
        if happening is Happening.RESTARTED:
            place = node.places[gpus]
            residents = tuple(sorted(each.job.job_id for each in place.runs))
            self._cut_run(run, node, place, residents, now_s)
            run.rate = run.full_rate
            run.epoch_began_s = now_s
            self._expect(run)
            return
        run.advance(now_s)
        if happening is Happening.EPOCH:
            run.epochs += 1
            run.complete(run.epoch_work_s, run.epochs * run.epoch_work_s, limited=gpus in node.limits)
            self._expect(run)
        elif not self._epochs:
            # Where ends of epochs are no events, one report at the end tells of the whole run.
            run.complete(run.job.work_s, run.job.work_s, limited=gpus in node.limits)

    def _change_power(self, node: _Node, now_s: float) -> tuple[str, ...]:
        # The change was due at an instant that may lie between two milliseconds.
        due_s = max(now_s, node.power.next_change_s(self._sleep) or now_s)
        self._move_power(node, node.power.at(due_s, self._sleep, bool(node.coming)))
        coming, node.coming = node.coming, []
        self._show(node, now_s)
        for run, gpus in coming:
            self._begin(run, node, gpus, now_s)
        return tuple(run.job.job_id for run, _ in coming)

    def _move_power(self, node: _Node, power: NodePowerState) -> None:
        if power is not node.power:
            node.power = power
            node.stamp += 1
            self._expect_node(node)

    def _expect_node(self, node: _Node) -> None:
        next_s = node.power.next_change_s(self._sleep)
        if next_s is not None:
            self._push(instant(next_s), Happening.NODE, node.stamp, node.name)

    def _draw(self, node: _Node) -> tuple[NodePower, float]:
        state = node.power.power
        if state is NodePower.ASLEEP:
            return state, self._truth.asleep_w
        free = node.gpus - sum(len(place.gpus) for place in node.places.values())
        held_w = math.fsum(place.power_w for place in node.places.values())
        return state, self._truth.base_w + held_w + free * self._truth.free_gpu_w

    def _show(self, node: _Node, now_s: float) -> None:
        """Begin a new interval of the node if its state or its power has changed."""
        shown = self._draw(node)
        if shown != node.shown:
            self._write(node, now_s)
            node.shown = shown

    def _write(self, node: _Node, now_s: float) -> None:
        if now_s > node.since_s:
            self._recording.nodes.append(NodeInterval(node.name, node.since_s, now_s, *node.shown))
            node.since_s = now_s
