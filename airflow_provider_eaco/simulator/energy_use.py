"""What energy budgets have to know of a simulation: what jobs have used, and which nodes sleep."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.profile import family_set
from airflow_provider_eaco.core.ports import UsedEnergy
from airflow_provider_eaco.simulator.cluster import VirtualCluster
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from airflow_provider_eaco.simulator.recording import Recording
from airflow_provider_eaco.simulator.scenario import Scenario


def sees_nodes(scenario: Scenario) -> bool:
    """Tell whether plans have to know which nodes sleep."""
    budgets = scenario.settings.energy_budget is not None and scenario.sleep is not None
    return scenario.steers or budgets


def asleep_w(scenario: Scenario) -> float | None:
    """Return what a sleeping node draws, ``None`` where none sleeps."""
    return None if scenario.sleep is None else scenario.truth.asleep_w


class SimulatedUse:
    """The port :class:`~airflow_provider_eaco.core.ports.EnergyUse` over a run that goes on.

    A set draws what the truth says, and its members are charged alike. Power limits are left out: nobody who
    limits power has a budget of kilowatt-hours yet.
    """

    def __init__(
        self, scenario: Scenario, recording: Recording, cluster: VirtualCluster, ledger: MemoryLedger
    ) -> None:
        self._truth = scenario.truth
        self._family_of = {job.job_id: job.family for job in scenario.jobs}
        self._recording = recording
        self._cluster = cluster
        self._ledger = ledger
        self._read = 0
        self._parts: list[UsedEnergy] = []

    def used_since(self, since_s: float) -> Sequence[UsedEnergy]:
        """Return the parts of all intervals that end after ``since_s``, up to now."""
        ended = self._recording.runs[self._read :]
        self._read += len(ended)
        self._parts = [part for part in self._parts if part.end_s > since_s]
        for run in ended:
            if run.end_s > since_s:
                length_s, gpus = run.end_s - run.start_s, len(run.gpus)
                energy_j = self._each_w(run.residents, gpus) * length_s
                self._parts.append(UsedEnergy(run.job_id, run.node, run.start_s, run.end_s, energy_j))
        return [*self._parts, *self._present()]

    def _present(self) -> list[UsedEnergy]:
        """Return the intervals that have not ended."""
        view = self._ledger.view()
        found = []
        for lease in view.leases:
            record = self._ledger.record_of(lease.job_id)
            if record is None or record.phase is not JobPhase.RUNNING:
                continue
            begin_s = self._cluster.run_of(lease.job_id).interval_s
            mates = tuple(mate.job_id for mate in self._ledger.leases_on(lease.placement))
            each_w = self._each_w(mates, len(lease.placement.gpu_uuids))
            energy_j = each_w * (view.now_s - begin_s)
            found.append(UsedEnergy(lease.job_id, lease.placement.node, begin_s, view.now_s, energy_j))
        return found

    def _each_w(self, residents: Sequence[str], gpus: int) -> float:
        families = family_set(tuple(self._family_of[name] for name in residents))
        seen = self._truth.performance(families, gpus)
        if seen is None:
            raise ValueError(f"residents: {', '.join(residents)} do not fit together")
        return seen.power_w / len(residents)
