"""Energy against the same work alone: what is compared, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.profile import PowerScope, ProfileBook, SoloProfile
from airflow_provider_eaco.core.ports import EnergyMethod, JobRecord
from airflow_provider_eaco.provider.api.energy_sums import JobUse, exclusive_j, grouped, sums
from airflow_provider_eaco.store.past import EnergyRow
from tests.contract.parts import make_job

SOLO = SoloProfile("resnet", "V100", 1, unit_s=100.0, power_w=200.0, scope=PowerScope.NODE)
ROW = EnergyRow("j", 1, "GPU-0", "V100", 30_000.0, 300.0, False, EnergyMethod.MODEL, 0.0)


def use(*rows: EnergyRow, units: int = 2, name: str = "j") -> JobUse:
    """Return a job of family resnet that has done so many units."""
    job = make_job(name).with_progress(Progress(units_done=units))
    found = JobUse(JobRecord(job, JobPhase.RUNNING, "x"))
    for row in rows:
        found.add(row)
    return found


def book(*profiles: SoloProfile) -> ProfileBook:
    return ProfileBook(solo={profile.key: profile for profile in profiles})


@pytest.mark.parametrize(
    ("job", "profile", "wanted"),
    [
        pytest.param(use(ROW), SOLO, 40_000.0, id="units x time x power"),
        pytest.param(use(ROW, units=0), SOLO, None, id="nothing finished"),
        pytest.param(use(ROW), None, None, id="no profile"),
        pytest.param(use(ROW), replace(SOLO, power_w=None), None, id="power alone unknown"),
        pytest.param(use(ROW), replace(SOLO, scope=PowerScope.BOARD), None, id="of another part"),
        pytest.param(
            use(replace(ROW, method=EnergyMethod.COUNTER)),
            replace(SOLO, scope=PowerScope.BOARD),
            40_000.0,
            id="boards by their counter",
        ),
        pytest.param(use(replace(ROW, energy_j=None, partial=True)), SOLO, None, id="not measured"),
        pytest.param(use(replace(ROW, partial=True)), SOLO, None, id="a part is missing"),
        pytest.param(use(ROW, replace(ROW, gpu_model="A100")), SOLO, None, id="on two models"),
    ],
)
def test_the_same_work_alone(job: JobUse, profile: SoloProfile | None, wanted: float | None) -> None:
    """What is not known of a job is unknown, and never taken for nothing."""
    assert exclusive_j(job, book(*(() if profile is None else (profile,)))) == wanted


def test_only_what_is_known_on_both_sides_is_compared() -> None:
    """A job whose work alone is unknown counts as used energy, and on neither side of the comparison."""
    known, unknown = use(ROW), use(replace(ROW, energy_j=5.0))
    known.exclusive_j = 40_000.0
    found = sums([known, unknown])
    assert (found.jobs, found.energy_j) == (2, 30_005.0)
    assert (found.compared_j, found.exclusive_j) == (30_000.0, 40_000.0)
    assert sums([]).energy_j is None


def test_groups_come_by_size() -> None:
    """The largest first; a job without a name has a group of its own."""
    small, large = use(replace(ROW, energy_j=1.0), name="small"), use(ROW, name="large")
    groups = grouped([small, large], lambda job: None if job is small else "a")
    assert [(group.name, group.energy_j) for group in groups] == [("a", 30_000.0), (None, 1.0)]
