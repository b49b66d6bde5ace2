"""When those that wait are expected to start: the planner's timetable, filled in planned order.

Cheap enough to be shown beside a long queue, unlike carrying the present on. Each job gets GPUs of its own,
so that in a pool that shares it may start earlier beside others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_eaco.core.energy.outlook import units_left
from airflow_provider_eaco.core.model.decision import Reason
from airflow_provider_eaco.core.model.gpu import GpuReading, Node
from airflow_provider_eaco.core.model.job import GpuRequest, Job, Progress
from airflow_provider_eaco.core.model.pool import PoolMode
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, PoolState
from airflow_provider_eaco.core.policy.agenda import Keeping, as_planning
from airflow_provider_eaco.core.policy.blocks import block_table
from airflow_provider_eaco.core.policy.bookings import reservations_of
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.forecast import Forecast
from airflow_provider_eaco.core.policy.registry import make_ordering
from airflow_provider_eaco.core.policy.timetable import Slot, Timetable, first_slot
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.snapshots import SnapshotBuilder

# What a job waits for beside GPUs that become free; when that comes to pass, nobody can tell. Unsound GPUs
# and nodes that take nothing new are no places in a timetable anyway.
_NOT_BY_THE_CLOCK = frozenset(
    {
        Reason.MISCONFIGURED,
        Reason.EXCEEDS_POOL,
        Reason.NO_SUCH_GPU,
        Reason.POOL_UNKNOWN,
        Reason.POOL_CLOSED,
        Reason.DEADLINE_UNREACHABLE,
        Reason.ON_HOLD,
        Reason.OVER_QUOTA,
        Reason.OVER_ENERGY_BUDGET,
        Reason.WAITING_FOR_ENERGY,
        Reason.WAITING_FOR_PARTNER,
        Reason.NODE_WAKING,
    }
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting job as it was planned last: the GPU pool, and the reasons that it was held for."""

    job: Job
    pool: str
    reasons: Collection[Reason]


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """When a job is expected to start.

    ``earliest_s`` and ``latest_s``: if everybody's rest, as profiles have it, is one standard deviation
    shorter or longer; both ``None`` where the spread of somebody before it is not known.
    """

    at_s: float
    earliest_s: float | None
    latest_s: float | None

    @property
    def error_s(self) -> float | None:
        """The larger of the two distances, ``None`` where they are not known."""
        if self.earliest_s is None or self.latest_s is None:
            return None
        return max(self.at_s - self.earliest_s, self.latest_s - self.at_s)


class _ByDeviation(Forecast):
    """The forecast with all durations ``sign`` standard deviations away, as far as those are known."""

    def __init__(self, snapshot: ClusterSnapshot, facts: CycleFacts, sign: int) -> None:
        super().__init__(snapshot, facts)
        self._now_s = snapshot.now_s
        self._sign = sign

    def run_s(self, request: GpuRequest, progress: Progress, model: str, time_scale: float) -> float:
        run_s = super().run_s(request, progress, model, time_scale)
        return run_s * self._factor(self.deviation(request, progress, model))

    def end_s(self, held: GpuSet, node: Node) -> float:
        left_s = super().end_s(held, node) - self._now_s
        return self._now_s + left_s * self._factor(self.deviation_of(held))

    def deviation_of(self, held: GpuSet) -> float | None:
        """Return the largest relative deviation of the residents' rests, ``None`` if one is not known."""
        model = held.gpus[0].model
        found = [self.deviation(each.job.request, each.job.progress, model) for each in held.residents]
        known = [each for each in found if each is not None]
        return max(known) if len(known) == len(found) else None

    def deviation(self, request: GpuRequest, progress: Progress, model: str) -> float | None:
        """Return the relative standard deviation of a rest of n units: s / m * sqrt(1 / n + 1 / samples).

        ``s`` and ``m`` are standard deviation and mean of a unit's time: units vary one by one, and their
        mean is only known from so many samples.
        """
        solo = self.facts.book.solo_of(request.family, model, request.gpus)
        left = units_left(progress, solo)
        if solo is None or not solo.unit_s or solo.spread_s is None or solo.samples < 2 or not left:
            return None
        return solo.spread_s / solo.unit_s * math.sqrt(1 / left + 1 / solo.samples)

    def _factor(self, deviation: float | None) -> float:
        return max(0.0, 1 + self._sign * (deviation or 0.0))


@dataclass(slots=True)
class _Filling:
    """One pool's timetable as it is filled; ``unsure`` are the nodes with somebody of unknown deviation."""

    forecast: _ByDeviation
    timetable: Timetable
    keeps_line: bool
    unsure: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, snapshot: ClusterSnapshot, facts: CycleFacts, sign: int) -> _Filling:
        ordering = make_ordering(snapshot.pool.settings.ordering)
        forecast = _ByDeviation(snapshot, facts, sign)
        keeping = getattr(ordering, "keeping", Keeping.HEAD_OF_LINE)
        filling = cls(
            forecast,
            Timetable(snapshot, reservations_of(snapshot), forecast),
            keeping is Keeping.HEAD_OF_LINE and as_planning(ordering) is None,
        )
        for name, state in snapshot.nodes.items():
            # Whoever has no known end frees nothing here, so nobody's start hangs on its deviation.
            ending = [held for held in state.sets if forecast.end_s(held, state.node) < math.inf]
            if any(forecast.deviation_of(held) is None for held in ending):
                filling.unsure.add(name)
        return filling

    def place(self, job: Job, snapshot: ClusterSnapshot) -> tuple[Slot, bool] | None:
        """Give the job its earliest place after all that were placed before; ``None``: nobody can tell it.

        With the place comes whether the deviation of everybody before it there is known.
        """
        lanes = self.timetable.lanes
        berths = self.timetable.berths(job)
        slot = first_slot(lanes, berths, block_table(job.request.gpus, self.timetable.strict))
        if self.keeps_line:
            # Nobody behind it starts before it on a node that could serve it.
            until_s = math.inf if slot is None else slot.start_s
            for alike in berths:
                for name, _ in alike.places:
                    lanes[name].close_until(until_s)
        if slot is None:
            return None
        lanes[slot.node].take(slot.mask, slot.start_s, slot.end_s)
        is_sure = slot.node not in self.unsure
        model = snapshot.nodes[slot.node].node.gpus[0].model
        if slot.end_s < math.inf and self.forecast.deviation(job.request, job.progress, model) is None:
            self.unsure.add(slot.node)
        return slot, is_sure


def expected_starts(
    view: LedgerView,
    pools: Sequence[PoolState],
    profiles: ProfileBook,
    readings: Mapping[str, GpuReading],
    queue: Sequence[Waiting],
) -> dict[str, ExpectedStart]:
    """Return by job id when it is expected to start; a job whose start nobody can tell is missing.

    :param view: its nodes are available as the planner judges it.
    :param queue: the waiting jobs, those of one pool in planned order.
    """
    snapshots = SnapshotBuilder(None).build(view, pools, profiles, readings)
    starts: dict[str, ExpectedStart] = {}
    for name, snapshot in snapshots.items():
        waiting = [each for each in queue if each.pool == name]
        if waiting and snapshot.pool.settings.mode in {PoolMode.EXCLUSIVE, PoolMode.SHARE}:
            starts |= _starts_of_pool(snapshot, waiting)
    return starts


def _starts_of_pool(snapshot: ClusterSnapshot, waiting: Sequence[Waiting]) -> dict[str, ExpectedStart]:
    facts = CycleFacts(snapshot)
    fillings = [_Filling.of(snapshot, facts, sign) for sign in (0, -1, 1)]
    starts: dict[str, ExpectedStart] = {}
    for each in waiting:
        if not _NOT_BY_THE_CLOCK.isdisjoint(each.reasons):
            continue
        places = [filling.place(each.job, snapshot) for filling in fillings]
        told = [place for place in places if place is not None]
        # By the clock it could have started: it waits for something that no timetable knows.
        if len(told) < len(places) or told[0][0].start_s <= snapshot.now_s:
            continue
        at_s = [slot.start_s for slot, _ in told]
        is_sure = all(sure for _, sure in told)
        starts[each.job.job_id] = ExpectedStart(
            at_s[0], min(at_s) if is_sure else None, max(at_s) if is_sure else None
        )
    return starts
