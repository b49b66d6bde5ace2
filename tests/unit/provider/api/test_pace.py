"""How fast a job runs against alone, and when that is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.profile import ProfileBook, SoloProfile
from airflow_provider_eaco.core.model.snapshot import Observation
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.api.pace import Pace, pace_of
from tests.contract.parts import make_job, place

BOOK = ProfileBook(
    solo={profile.key: profile for profile in [SoloProfile("resnet", "V100", 1, unit_s=100.0)]}
)
MODELS = {place(0).gpu_uuids[0]: "V100"}
SHARED = Progress(units_done=4, run_s=440.0)
RECORD = JobRecord(
    make_job().with_progress(SHARED), JobPhase.RUNNING, "x", observation=Observation(2, units=4, unit_s=110.0)
)


def own(**changes: object) -> JobRecord:
    return replace(RECORD, job=make_job().with_progress(replace(SHARED, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "models", "book", "wanted"),
    [
        pytest.param(RECORD, MODELS, BOOK, Pace(1.1, 1.1), id="by its family's profile"),
        pytest.param(own(solo_unit_s=88.0), MODELS, BOOK, Pace(1.25, 1.25), id="by its own units alone"),
        pytest.param(RECORD, MODELS, ProfileBook(), Pace(None, None), id="no profile"),
        pytest.param(RECORD, {}, BOOK, Pace(None, None), id="a GPU that is gone"),
        pytest.param(replace(RECORD, observation=None), MODELS, BOOK, Pace(None, 1.1), id="nothing seen yet"),
        pytest.param(own(units_done=0, run_s=0.0), MODELS, BOOK, Pace(1.1, None), id="nothing done yet"),
    ],
)
def test_pace_against_alone(
    record: JobRecord, models: dict[str, str], book: ProfileBook, wanted: Pace
) -> None:
    """Its own time alone goes before the profile's, and without both nothing is claimed."""
    assert pace_of(record, place(0), models, book) == wanted
    if record.job.progress.solo_unit_s is None:
        assert pace_of(record, None, models, book) == Pace(None, None)
