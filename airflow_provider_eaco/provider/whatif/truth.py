"""What is taken for true in a what-if: the profiles as they were when it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_eaco.core.energy.outlook import remaining_solo_s, units_left, units_total_of
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.profile import family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, Resident
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.trial import observed_slowdown
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.whatif.runs import Run

# As the planner has it: a run that is over its prediction takes this part of its time so far, and at least a
# second more.
_OVERRUN = 0.1
_LEAST_S = 1.0


class Truth:
    """How long jobs run, how much they slow each other down, and what sets draw.

    :param snapshots: one a GPU pool, of the instant at which the what-if begins.
    """

    def __init__(self, snapshots: Mapping[str, ClusterSnapshot]) -> None:
        self._facts = {name: CycleFacts(snapshot) for name, snapshot in snapshots.items()}
        self._book = next(iter(snapshots.values())).profiles
        # Families of sets that were never measured, and whose pace nobody can tell.
        self.estimated: set[tuple[str, ...]] = set()
        self.untold: set[tuple[str, ...]] = set()

    def run_of(self, record: JobRecord, lease: Lease, node: Node, now_s: float) -> Run:
        """Return the run of a job on the lease's GPUs that begins or goes on now."""
        job = record.job
        model = next((gpu.model for gpu in node.gpus if gpu.uuid in lease.placement.gpu_uuids), "")
        solo = self._book.solo_of(job.request.family, model, len(lease.placement.gpu_uuids))
        unit_s = job.progress.solo_unit_s if solo is None or solo.unit_s is None else solo.unit_s
        left_s = remaining_solo_s(job.progress, solo)
        return Run(
            job_id=job.job_id,
            family=job.request.family,
            token=lease.token,
            placement=lease.placement,
            model=model,
            time_scale=node.time_scale,
            progress=replace(job.progress, units_total=units_total_of(job.progress, solo)),
            left_s=left_s if left_s is None else max(left_s, _LEAST_S),
            unit_s=unit_s,
            unit_left_s=unit_s,
            since_s=now_s,
            can_yield=job.progress.can_yield or bool(solo is not None and solo.checkpoints),
            set_version=lease.set_version,
            began_version=lease.set_version,
        )

    def resumed(self, run: Run, resident: Resident, held: GpuSet, snapshot: ClusterSnapshot) -> Run:
        """Return the run of somebody who was there already: with its part of a unit, at the pace seen.

        Device time since the grant that no finished unit accounts for was spent on the present unit.
        """
        run.seen = resident.observation
        run.slowdown = observed_slowdown(resident, held, snapshot) if len(held.residents) > 1 else None
        if run.slowdown is None:
            run.slowdown = self.slowdown(run, held.families, snapshot.pool.settings.name)
        if run.left_s is None or run.unit_s is None or run.slowdown is None:
            return run
        so_far_s = max(0.0, snapshot.now_s - resident.granted_s) * run.time_scale
        idle_s = max(0.0, so_far_s - resident.job.progress.run_s)
        begun_s = min(idle_s / run.slowdown, run.unit_s)
        solo = self._book.solo_of(run.family, run.model, len(run.placement.gpu_uuids))
        left = units_left(resident.job.progress, solo) or 0
        run.left_s = left * run.unit_s - begun_s
        if run.left_s <= 0:
            run.left_s = max(_OVERRUN * so_far_s, _LEAST_S)
        run.unit_left_s = min(run.left_s, max(run.unit_s - begun_s, _LEAST_S))
        run.unit_elapsed_s = begun_s * run.slowdown
        changed_s = resident.granted_s if resident.trial_since_s is None else resident.trial_since_s
        whole = snapshot.now_s - run.unit_elapsed_s / run.time_scale >= changed_s
        run.began_version = resident.set_version if whole else None
        return run

    def slowdown(self, run: Run, families: Sequence[str], pool: str) -> float | None:
        """Return device time / work of the run in a set of these families, ``None`` where nobody can tell."""
        if len(families) == 1:
            return 1.0
        found = self._predicted(run, families, pool)
        key = family_set(tuple(families))
        if found is None:
            self.untold.add(key)
            return None
        if not found.measured:
            self.estimated.add(key)
        return found.expected_slowdowns[run.family]

    def power_w(self, run: Run, families: Sequence[str], pool: str) -> float | None:
        """Return what the set draws on the run's GPUs, ``None`` where nobody can tell."""
        if len(families) == 1:
            solo = self._book.solo_of(run.family, run.model, len(run.placement.gpu_uuids))
            return None if solo is None else solo.power_w
        found = self._predicted(run, families, pool)
        return None if found is None else found.joint_power_w

    def _predicted(self, run: Run, families: Sequence[str], pool: str) -> SetPrediction | None:
        gpus = len(run.placement.gpu_uuids)
        return self._facts[pool].predict(family_set(tuple(families)), run.model, gpus)
