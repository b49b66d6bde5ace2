"""Scheduled runs beside a backfill (case C06): who is next on the only GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.provider.executor.lane_rig import START_S, LaneRig

RUNS = 50
AT_ONCE = 10
EVERY = 5
DAY_S = 86_400.0


class Calendar:
    """One DAG with a backfill of old dates, at most ten runs at once, and a scheduled run now and then."""

    def __init__(self, rig: LaneRig) -> None:
        self.rig = rig
        self.queued: list[str] = []
        self.arrived: dict[str, int] = {}
        self.started: list[str] = []

    def queue(self, job_id: str, run_after_s: float) -> None:
        """Hand the task of a run over."""
        self.rig.queue(job_id, job_id)
        self.rig.facts[job_id] = replace(
            self.rig.facts[job_id], run_after_s=run_after_s, is_backfill=job_id.startswith("old")
        )
        self.queued.append(job_id)
        self.arrived[job_id] = len(self.started)

    def turn(self) -> None:
        """Hand over what may be, run a heartbeat, and let the task that runs end before the next one."""
        waiting = [job_id for job_id in self.queued if job_id not in self.started]
        old = [job_id for job_id in self.queued if job_id.startswith("old")]
        for number in range(len(old), min(RUNS, len(old) + AT_ONCE - sum(each in old for each in waiting))):
            self.queue(f"old-{number}", START_S - (RUNS - number) * DAY_S)
        self.rig.beat()
        self.started = [order.job_id for order in self.rig.dispatcher.orders]
        self.rig.become(self.started[-1], "success")
        self.rig.dispatcher.end(self.started[-1])

    def run(self) -> None:
        """Go on until every run has started; the last scheduled one comes while the backfill still waits."""
        for turn in range(RUNS + RUNS // EVERY):
            self.turn()
            if turn % EVERY == EVERY - 1 and len(self.started) < RUNS - AT_ONCE:
                self.queue(f"new-{turn}", START_S + turn)


def passed_by(calendar: Calendar) -> list[int]:
    """Return how many tasks have started before each scheduled one since it was handed over."""
    order = calendar.started
    return [order.index(job_id) - at for job_id, at in calendar.arrived.items() if job_id.startswith("new")]


def test_c06_scheduled_runs_wait_for_the_task_that_runs_and_the_backfill_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ``backfill_priority`` every scheduled run is next on the GPUs, however many old dates wait; all
    other turns are the backfill's, so that it finishes.
    """
    calendar = Calendar(LaneRig(monkeypatch, backfill_priority=-1000))
    calendar.run()
    assert passed_by(calendar) == [0] * 7
    old = [job_id for job_id in calendar.started if job_id.startswith("old")]
    assert old == [f"old-{number}" for number in range(RUNS)]
    windows = [calendar.started[at : at + EVERY] for at in range(0, RUNS, EVERY)]
    assert min(sum(each.startswith("old") for each in window) for window in windows) >= EVERY - 1


def test_c06_without_the_setting_the_oldest_dates_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that is documented for ``fifo``: a scheduled run comes after every run of the backfill."""
    calendar = Calendar(LaneRig(monkeypatch))
    calendar.run()
    assert len(passed_by(calendar)) == 7
    assert calendar.started[:RUNS] == [f"old-{number}" for number in range(RUNS)]
