"""Bookings in a cycle: what they reserve, whom they are in the way of, and the reason in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from airflow_provider_eaco.core.model.booking import Booking, gpus_in_words, names_of
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Reason, Verdict, hold
from airflow_provider_eaco.core.model.gpu import Gpu, GpuGroup
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.reservation import Reservation
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
from airflow_provider_eaco.core.policy.demand import demand_reservations
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.filters import Needs, fitting_groups

# Who runs for nobody knows how long starts on no GPU that is booked from within this time on.
HORIZON_S = 24 * 3600.0
# A sentence names so many of the bookings that are in the way.
_MOST_NAMED = 3


def reservations_of(snapshot: ClusterSnapshot) -> tuple[Reservation, ...]:
    """Return what is promised before anybody is looked at: the demand of the pool's curves, and bookings."""
    demand = demand_reservations(snapshot)
    if not snapshot.bookings:
        return demand
    horizon_s = snapshot.now_s + HORIZON_S
    booked = (
        Reservation(each.placement, each.start_s, each.end_s, each.name, is_distant=each.start_s > horizon_s)
        for each in snapshot.bookings
    )
    return (*demand, *booked)


def nodes_booked(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Return the nodes with a GPU that is booked now, or from within a day on."""
    until_s = snapshot.now_s + HORIZON_S
    near = (each for each in snapshot.bookings if each.end_s > snapshot.now_s and each.start_s <= until_s)
    return frozenset(each.placement.node for each in near)


def next_edge_s(snapshot: ClusterSnapshot) -> float | None:
    """Return when the next booking begins or ends, ``None`` if none does."""
    edges = (at_s for each in snapshot.bookings for at_s in (each.start_s, each.end_s))
    return min((at_s for at_s in edges if at_s > snapshot.now_s), default=None)


class Bookings:
    """What the bookings of a snapshot do to single jobs."""

    def __init__(self, snapshot: ClusterSnapshot, facts: CycleFacts) -> None:
        self._begun = snapshot
        self._facts = facts
        self._present = sorted(
            (each for each in snapshot.bookings if each.end_s > snapshot.now_s),
            key=lambda each: (each.start_s, each.booking_id),
        )
        self._shut: dict[tuple[Needs, frozenset[str]], frozenset[str]] = {}

    @cached_property
    def _names(self) -> dict[str, str]:
        return names_of(state.node for state in self._begun.nodes.values())

    @cached_property
    def _booked(self) -> frozenset[str]:
        return frozenset(uuid for each in self._present for uuid in each.placement.gpu_uuids)

    def shut_to(self, job: Job, barred: frozenset[str]) -> frozenset[str]:
        """Return the nodes on which bookings leave the job too few GPUs, were all others free.

        :param barred: the GPUs on which the job would still be when somebody else is to have them.
        """
        needs = Needs.of(job.request)
        key = needs, barred & self._booked
        known = self._shut.get(key)
        if known is None:
            states = (self._begun.nodes.get(each.placement.node) for each in self._present)
            known = self._shut[key] = frozenset(
                state.node.name
                for state in states
                if state is not None and self._lacks(needs, state, state.node.gpus, key[1])
            )
        return known

    def told(
        self, decision: AdmissionDecision, job: Job, barred: frozenset[str], present: ClusterSnapshot
    ) -> AdmissionDecision:
        """Return the hold with the bookings that it comes from, if it comes from any.

        They are in the way on a node that would do without them: its free GPUs, or all that it has.
        """
        only_booked = barred <= self._booked and not present.kept_nodes
        barred &= self._booked
        if decision.verdict is not Verdict.HOLD or not barred:
            return decision
        needs, shut = Needs.of(job.request), self.shut_to(job, barred)
        blocked = {
            name
            for name in {each.placement.node for each in self._present}
            if name in shut or self._lacks(needs, present.nodes.get(name), None, barred)
        }
        found = []
        # On each GPU the first one is in the way for sure; a later one may begin when the job has ended.
        for each in self._present:
            in_the_way = barred.intersection(each.placement.gpu_uuids)
            barred -= in_the_way
            if in_the_way and each.placement.node in blocked:
                found.append(each)
        if not found:
            return decision
        # GPUs that are kept for nobody else are kept for these.
        findings = [
            each
            for each in decision.findings
            if not (only_booked and each.reason is Reason.RESERVED_FOR_EARLIER_JOB)
        ]
        return replace(decision, findings=hold(*findings, self._finding(found)).findings)

    def _lacks(
        self, needs: Needs, state: NodeState | None, gpus: Sequence[Gpu] | None, barred: frozenset[str]
    ) -> bool:
        """Tell whether these GPUs of the node (default: the free ones) would do without the bookings, and
        do not with them.
        """
        if state is None:
            return False
        fitting = fitting_groups(needs, self._facts.hardware(state.node), self._facts)
        fit = [
            [gpu for gpu in (state.free if gpus is None else gpus) if _is_of(gpu, model, groups)]
            for model, groups in fitting.items()
        ]
        left = [[gpu for gpu in alike if gpu.uuid not in barred] for alike in fit]
        return max(map(len, fit), default=0) >= needs.gpus > max(map(len, left), default=0)

    def _finding(self, bookings: Sequence[Booking]) -> Finding:
        told = [
            f"{gpus_in_words(each.placement, self._names)} by {each.name} {each.span}"
            for each in bookings[:_MOST_NAMED]
        ]
        if len(bookings) > len(told):
            told.append(f"and {len(bookings) - len(told)} more")
        return Finding(Reason.BOOKED, {"bookings": "; ".join(told)})


def _is_of(gpu: Gpu, model: str, groups: Sequence[GpuGroup]) -> bool:
    return gpu.model == model and any(group.usable_mib == gpu.memory_usable_mib for group in groups)
