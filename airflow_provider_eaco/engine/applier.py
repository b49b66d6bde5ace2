"""Carries one plan out: reviews of running sets first, then grants, then rejections; each step by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Verdict
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.instruction import (
    Confirm,
    KindDecision,
    Launch,
    Plan,
    Steer,
    Unconfirmed,
    Yield,
)
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.ports import DecisionLog, Ledger, ProfileStore
from airflow_provider_eaco.engine.profiling import learn_set


@dataclass(frozen=True, slots=True)
class Rejection:
    """A job that can never run, with the decision whose text its task shows."""

    job_id: str
    decision: AdmissionDecision


@dataclass(slots=True)
class Applied:
    """What has been carried out so far; it grows step by step, so that a failure half way loses nothing."""

    granted: list[Lease] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    confirmed: list[Placement] = field(default_factory=list)
    unconfirmed: list[Placement] = field(default_factory=list)
    yielding: list[str] = field(default_factory=list)
    moving: list[str] = field(default_factory=list)
    steers: list[Steer] = field(default_factory=list)


class Applier:
    """Applies plans through the ports."""

    def __init__(self, ledger: Ledger, profiles: ProfileStore, decisions: DecisionLog) -> None:
        self._ledger = ledger
        self._profiles = profiles
        self._decisions = decisions

    def apply(
        self,
        plan: Plan,
        snapshot: ClusterSnapshot,
        gpu_versions: Mapping[str, int],
        owners: Mapping[str, str],
        applied: Applied,
    ) -> None:
        """Carry ``plan`` out and note in ``applied`` what was done.

        What has changed since the snapshot is left as it is: a conflicting job waits for the next cycle.

        :param gpu_versions: the counters that were read with the snapshot.
        :param owners: by job id, the executor that holds the job's workload and will launch it.
        :raises StoreUnavailableError: if a port cannot go on; ``applied`` holds what was done before.
        """
        versions = _versions_of_launches(plan, gpu_versions)
        for instruction in plan.instructions:
            if isinstance(instruction, Launch):
                self._launch(instruction, snapshot, versions, owners, applied)
            elif isinstance(instruction, Steer):
                # Nodes and GPUs are their owner's to steer, as processes are their owner's to start.
                applied.steers.append(instruction)
            else:
                self._review(instruction, snapshot, applied)
        for item in plan.decisions:
            if item.decision.verdict is Verdict.REJECT:
                self._reject(item, snapshot.now_s, applied)

    def _launch(
        self,
        launch: Launch,
        snapshot: ClusterSnapshot,
        versions: dict[str, int],
        owners: Mapping[str, str],
        applied: Applied,
    ) -> None:
        job_id = launch.job.job_id
        state = LeaseState.TRIAL if launch.co_residents else LeaseState.EXCLUSIVE
        try:
            lease = self._ledger.grant(launch, state, versions, owners.get(job_id, ""))
        except LeaseConflictError:
            applied.conflicts.append(job_id)
            return
        # The grant counted its GPUs once; who joins them later in this plan was planned on top of it.
        for uuid in launch.placement.gpu_uuids:
            versions[uuid] += 1
        applied.granted.append(lease)
        self._tell_of_grant(launch, snapshot)

    def _tell_of_grant(self, launch: Launch, snapshot: ClusterSnapshot) -> None:
        now_s, newcomer = snapshot.now_s, launch.job
        gpus = len(launch.placement.gpu_uuids)
        where = f"{gpus} {'GPU' if gpus == 1 else 'GPUs'} on {launch.placement.node}"
        if not launch.co_residents:
            self._decisions.record_event(newcomer.job_id, "granted", f"{where}, alone", now_s)
            return
        # Who was admitted by the same plan is in the snapshot's queue, not in a set.
        names = _names(_set_at(launch.placement, snapshot)) | {
            job.job_id: job.label for job in snapshot.waiting if job.job_id in launch.co_residents
        }
        others = ", ".join(names.get(job_id, job_id) for job_id in launch.co_residents)
        self._decisions.record_event(newcomer.job_id, "trial", f"{where}, with {others}", now_s)
        for job_id in launch.co_residents:
            self._decisions.record_event(job_id, "trial", f"{newcomer.label} joined on {where}", now_s)

    def _review(
        self, review: Confirm | Unconfirmed | Yield, snapshot: ClusterSnapshot, applied: Applied
    ) -> None:
        held = _set_at(review.placement, snapshot)
        if held is None:
            return
        if isinstance(review, Yield):
            self._ask_to_yield(review, held, snapshot.now_s, applied)
        elif isinstance(review, Confirm):
            self._end_trial(held, review.set_version, LeaseState.CONFIRMED, snapshot.now_s, applied)
        else:
            self._end_trial(held, review.set_version, LeaseState.UNCONFIRMED, snapshot.now_s, applied)

    def _ask_to_yield(self, review: Yield, held: GpuSet, now_s: float, applied: Applied) -> None:
        if any(
            resident.job.job_id == review.job_id and resident.state is LeaseState.YIELDING
            for resident in held.residents
        ):
            return
        if not self._ledger.ask_to_yield(review.job_id, review.set_version):
            return
        if not review.undo:
            applied.moving.append(review.job_id)
            self._decisions.record_event(review.job_id, "asked to move", review.why, now_s)
            return
        applied.yielding.append(review.job_id)
        learn_set(self._profiles, held, now_s, undone=True)
        leaver = _names(held).get(review.job_id, review.job_id)
        for resident in held.residents:
            leaves = resident.job.job_id == review.job_id
            text = review.why if leaves else f"{leaver} was asked to leave: {review.why}"
            self._decisions.record_event(resident.job.job_id, "undone", text, now_s)

    def _end_trial(
        self, held: GpuSet, set_version: int, state: LeaseState, now_s: float, applied: Applied
    ) -> None:
        before = {resident.state for resident in held.residents} - {LeaseState.YIELDING}
        if before == {state} or not self._ledger.set_lease_state(held.placement, set_version, state):
            return
        if state is LeaseState.CONFIRMED:
            applied.confirmed.append(held.placement)
            learn_set(self._profiles, held, now_s, undone=False)
        else:
            applied.unconfirmed.append(held.placement)
        text = ", ".join(held.families)
        for resident in held.residents:
            self._decisions.record_event(resident.job.job_id, state.value, text, now_s)

    def _reject(self, item: KindDecision, now_s: float, applied: Applied) -> None:
        text = "; ".join(finding.text for finding in item.decision.findings)
        for job_id in item.job_ids:
            if self._ledger.finish_waiting(job_id, JobPhase.REJECTED):
                applied.rejected.append(Rejection(job_id, item.decision))
                self._decisions.record_event(job_id, "rejected", text, now_s)


def _versions_of_launches(plan: Plan, gpu_versions: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of the GPUs that the plan grants; of no other are any needed."""
    granted = (each.placement.gpu_uuids for each in plan.instructions if isinstance(each, Launch))
    return {uuid: gpu_versions[uuid] for uuids in granted for uuid in uuids if uuid in gpu_versions}


def _names(held: GpuSet | None) -> dict[str, str]:
    return {} if held is None else {resident.job.job_id: resident.job.label for resident in held.residents}


def _set_at(placement: Placement, snapshot: ClusterSnapshot) -> GpuSet | None:
    state = snapshot.nodes.get(placement.node)
    if state is None:
        return None
    return next((held for held in state.sets if held.placement == placement), None)
