"""A backfill and the schedule of one DAG (C06). Airflow itself makes backfills on PostgreSQL only: on SQLite
its API answers that the database is locked as soon as anybody else writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.system.rig import Rig

pytestmark = [pytest.mark.airflow, pytest.mark.postgres]


@pytest.fixture
def calendar(rig: Rig) -> Iterator[Rig]:
    """The rig, whose DAG ``calendar`` has its folder; afterwards it is paused, and none of its runs go on."""
    folder = rig.airflow.home / "calendar"
    folder.mkdir()
    yield rig
    rig.end_runs()
    (folder / "end").touch()
    unfinished = "SELECT run_id FROM dag_run WHERE dag_id = 'calendar' AND state IN ('queued', 'running')"
    rig.wait_for(lambda: not rig.airflow.query(unfinished), "the runs of the calendar are over")
    rig.airflow.api.call("PATCH", "/dags/calendar", {"is_paused": True})


def test_c06_a_scheduled_run_waits_for_the_task_that_runs_and_the_backfill_goes_on(calendar: Rig) -> None:
    """Three old dates of a backfill and one scheduled run wait: the scheduled run is next on the GPU, and
    then come the old dates in their order.
    """
    airflow, folder = calendar.airflow, calendar.airflow.home / "calendar"
    holder = calendar.run("one_turn")
    holder.wait_started()
    airflow.wait_for(lambda: airflow.api.answers("/api/v2/dags/calendar"), "the calendar")
    airflow.api.call("PATCH", "/dags/calendar", {"is_paused": False})
    dates = {"from_date": "2021-01-01T00:00:00Z", "to_date": "2023-01-01T00:00:00Z", "max_active_runs": 3}
    airflow.api.call("POST", "/backfills", {"dag_id": "calendar", **dates})
    waiting = "SELECT job_id FROM eaco_job WHERE dag_id = 'calendar' AND phase = 'waiting' AND pool = 'turns'"
    calendar.wait_for(lambda: len(airflow.query(waiting)) == 4, "four runs wait")
    holder.end()
    for count in range(1, 5):
        runs = calendar.wait_for(partial(begun, folder, count), f"{count} starts")
        (folder / f"end-{runs[-1]}").touch()
    assert runs[0].startswith("scheduled__")
    assert [run.partition("-")[0] for run in runs[1:]] == [f"backfill__{year}" for year in (2021, 2022, 2023)]


def begun(folder: Path, count: int) -> list[str] | None:
    """Return the runs of the calendar whose tasks have started, as soon as there are so many."""
    lines = folder / "started.jsonl"
    runs = [json.loads(line)["run"] for line in lines.read_text().splitlines()] if lines.exists() else []
    return runs if len(runs) >= count else None
