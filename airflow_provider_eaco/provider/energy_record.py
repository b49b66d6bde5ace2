"""The energy record of one task try, as one value: the log, XCom, commands and pages show this.

Unknown is ``None`` in it, never 0. An amount is ``estimated`` unless a counter of the GPU itself gave it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_eaco.core.energy.accounting import EnergyMethod, RunEnergy, SplitRule
from airflow_provider_eaco.core.energy.records import JobEnergy
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.shown import JOULES_PER_KWH

UNKNOWN_METHOD = "unknown"
# From the least certain to the most; a sum is as certain as its least certain part.
_METHODS = {
    EnergyMethod.INTEGRATED: "estimated",
    EnergyMethod.DIVIDED: "estimated",
    EnergyMethod.MODEL: "simulated",
    EnergyMethod.COUNTER: "counter",
}


@dataclass(frozen=True, slots=True)
class EnergyRecord:
    """What one task try took.

    ``energy_j`` is ``None`` where nothing was measured, and a lower bound if ``partial``. ``seconds`` were
    looked at. ``stretch`` is run time / exclusive run time, ``None`` where the time alone is not known.
    ``carbon_g_per_kwh`` is the site's factor, ``None`` where none is configured.
    """

    energy_j: float | None = None
    partial: bool = False
    seconds: float = 0.0
    mean_w: float | None = None
    peak_w: float | None = None
    stretch: float | None = None
    co_residents: tuple[str, ...] = ()
    methods: frozenset[EnergyMethod] = frozenset()
    rules: frozenset[SplitRule] = frozenset()
    carbon_g_per_kwh: float | None = None

    @property
    def method(self) -> str:
        """How the amount was found, in one word: counter, estimated, simulated or unknown."""
        if self.energy_j is None:
            return UNKNOWN_METHOD
        return next((word for method, word in _METHODS.items() if method in self.methods), UNKNOWN_METHOD)

    @property
    def co2e_g(self) -> float | None:
        """Grams of CO2 equivalent; ``None`` without the site's factor or without an amount."""
        if self.energy_j is None or self.carbon_g_per_kwh is None:
            return None
        return self.energy_j / JOULES_PER_KWH * self.carbon_g_per_kwh

    def as_json(self) -> dict[str, Any]:
        """Return the record for programs; CO2e only where the site has a factor."""
        value: dict[str, Any] = {
            "energy_j": self.energy_j,
            "partial": self.partial,
            "seconds": self.seconds,
            "mean_w": self.mean_w,
            "peak_w": self.peak_w,
            "stretch": self.stretch,
            "co_residents": list(self.co_residents),
            "method": self.method,
            "split_by": sorted(rule.value for rule in self.rules if rule is not SplitRule.ALONE),
        }
        if self.carbon_g_per_kwh is not None:
            value |= {"co2e_g": self.co2e_g, "carbon_g_per_kwh": self.carbon_g_per_kwh}
        return value


def record_of_run(
    run: RunEnergy, co_residents: Iterable[str], stretch: float | None, carbon_g_per_kwh: float | None
) -> EnergyRecord:
    """Return the record of a run as its meter has it now."""
    return EnergyRecord(
        energy_j=run.energy_j if run.known_s else None,
        partial=run.partial or run.known_s < run.seconds,
        seconds=run.seconds,
        mean_w=run.mean_w,
        peak_w=run.peak_w,
        stretch=stretch,
        co_residents=tuple(sorted(co_residents)),
        methods=frozenset(run.methods),
        rules=frozenset(run.rules),
        carbon_g_per_kwh=carbon_g_per_kwh,
    )


def record_of_job(energy: JobEnergy, stretch: float | None, carbon_g_per_kwh: float | None) -> EnergyRecord:
    """Return the record of a task try as it is stored, over all its leases."""
    return EnergyRecord(
        energy_j=energy.energy_j,
        partial=energy.partial,
        seconds=energy.seconds,
        mean_w=energy.mean_w,
        peak_w=energy.peak_w,
        stretch=stretch,
        co_residents=energy.co_residents,
        methods=energy.methods,
        rules=energy.rules,
        carbon_g_per_kwh=carbon_g_per_kwh,
    )


def stretch_of(progress: Progress, alone_unit_s: float | None = None) -> float | None:
    """Return run time / exclusive run time of what was done; ``None`` where the time alone is not known.

    :param alone_unit_s: unit time alone of the family, for a run that never was alone itself.
    """
    alone_s = (progress.solo_unit_s or alone_unit_s or 0.0) * progress.units_done
    return progress.run_s / alone_s if alone_s > 0 and progress.run_s > 0 else None


def alone_unit_s(record: JobRecord, lease: Lease, nodes: Sequence[Node], book: ProfileBook) -> float | None:
    """Return the unit time alone that is believed of the job's family on exactly these GPUs."""
    models = {gpu.model for node in nodes for gpu in node.gpus if gpu.uuid in lease.placement.gpu_uuids}
    if len(models) != 1:
        return None
    solo = book.solo_of(record.job.request.family, models.pop(), len(lease.placement.gpu_uuids))
    return None if solo is None else solo.unit_s


def labels_beside(lease: Lease, leases: Iterable[Lease], label_of: Mapping[str, str]) -> set[str]:
    """Return the labels of the jobs that hold the same GPUs now."""
    return {
        label_of.get(other.job_id, f"job {other.job_id}")
        for other in leases
        if other.placement == lease.placement and other.token != lease.token
    }
