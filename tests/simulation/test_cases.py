"""Cases C01, C05, C07 and C08 in the simulator: from the trace to the starts, through the whole engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.pool import FairShare, TeamSource
from airflow_provider_eaco.simulator.recording import Recording
from airflow_provider_eaco.simulator.runner import Simulation
from airflow_provider_eaco.simulator.scenario import Choices, from_trace
from airflow_provider_eaco.simulator.trace import TraceJob, write_trace

MINUTE_S = 60.0
ORDERS = ("fifo", "horizon")


class Lived:
    """A simulated day: when each job has started, and what was told about it when."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.starts_s: dict[str, float] = {}
        self.ends_s: dict[str, float] = {}
        for run in sorted(recording.runs, key=lambda run: run.start_s):
            self.starts_s.setdefault(run.job_id, run.start_s)
            self.ends_s[run.job_id] = run.end_s

    def reasons(self, job_id: str) -> list[str]:
        return [row.reason for row in self.recording.decisions if row.job_id == job_id and row.reason]


def live(
    folder: Path, jobs: Sequence[TraceJob], gpus: int, order: str, *rules: str, **settings: object
) -> Lived:
    """Simulate the jobs on one node of ``gpus`` GPUs, each on GPUs of its own."""
    write_trace(folder / "trace.csv", sorted(jobs, key=lambda job: job.submit_s))
    choices = Choices("exclusive", order, rules, nodes=1, gpus_per_node=gpus)
    scenario = from_trace(folder / "trace.csv", choices)
    scenario = replace(scenario, settings=replace(scenario.settings, **settings))
    return Lived(Simulation(scenario).run())


def stream(
    name: str, count: int, every_s: float, work_s: float = MINUTE_S, priority: int = 0
) -> list[TraceJob]:
    return [
        TraceJob(f"{name}-{number:03d}", "small", 1, number * every_s, work_s, priority=priority)
        for number in range(count)
    ]


@pytest.mark.parametrize("order", ORDERS)
def test_c01_a_big_job_of_high_priority_is_next_within_one_small_job(tmp_path: Path, order: str) -> None:
    """20 small jobs stream onto 2 GPUs; none that would delay the big one starts, and they are told why."""
    jobs = [*stream("small", 20, 20.0), TraceJob("big", "big", 2, 100.0, 600.0, priority=10)]
    day = live(tmp_path, jobs, 2, order)
    assert 100.0 <= day.starts_s["big"] <= 100.0 + MINUTE_S
    between = [job_id for job_id, start_s in day.starts_s.items() if 100.0 <= start_s < day.starts_s["big"]]
    assert between == []
    assert any("reserved_for_earlier_job" in day.reasons(job.job_id) for job in jobs[:20])


@pytest.mark.parametrize(("order", "by"), [("fifo", TeamSource.POOL), ("horizon", TeamSource.DAG)])
def test_c05_with_fair_share_a_flood_lets_the_other_team_in(
    tmp_path: Path, order: str, by: TeamSource
) -> None:
    """B's only job starts after at most one more of A's 60 per GPU; without the rule after all of them."""
    flood = [replace(job, submit_s=0.0, pool="a", dag_id="a") for job in stream("a", 60, 0.0)]
    other = TraceJob("b", "small", 1, 90.0, MINUTE_S, pool="b", dag_id="b")
    fair = live(tmp_path, [*flood, other], 2, order, "fair_share", fair_share=FairShare(by=by))
    between = [job for job in flood if 90.0 <= fair.starts_s[job.job_id] < fair.starts_s["b"]]
    assert len(between) <= 2
    plain = live(tmp_path, [*flood, other], 2, order)
    assert plain.starts_s["b"] >= 30 * MINUTE_S


@pytest.mark.parametrize("order", ORDERS)
def test_c07_a_job_of_low_priority_starts_within_the_ageing_bound(tmp_path: Path, order: str) -> None:
    """A Poisson stream of priority 10 keeps both GPUs busy; the only job of priority 1 has its turn."""
    draw, at_s, jobs = random.Random(7), 0.0, []
    for number in range(90):
        jobs.append(TraceJob(f"urgent-{number:03d}", "small", 1, at_s, MINUTE_S, priority=10))
        at_s = round(at_s + draw.expovariate(1 / 28.0), 3)
    low = TraceJob("low", "small", 1, 30.0, MINUTE_S, priority=1)
    starts_s = {
        rules: live(tmp_path, [*jobs, low], 2, order, *rules, ageing_s=40.0).starts_s["low"]
        for rules in ((), ("ageing",))
    }
    # Who comes within ten steps may pass it, and what runs by then has to end.
    passing = sum(job.submit_s <= 30.0 + 10 * 40.0 for job in jobs)
    bound_s = max(30.0 + 10 * 40.0, passing * MINUTE_S / 2) + 2 * MINUTE_S
    assert starts_s["ageing",] <= bound_s < starts_s[()]


@pytest.mark.parametrize("order", ["sjf", "horizon"])
def test_c08_a_gang_gets_its_gpus_at_once_and_two_do_not_block_each_other(tmp_path: Path, order: str) -> None:
    """Under ``reserve`` two gangs of four have their turns though small jobs always wait."""
    gangs = [TraceJob(f"gang-{number}", "gang", 4, 100.0 + number, 1200.0) for number in range(2)]
    day = live(tmp_path, [*stream("small", 80, 14.0), *gangs], 4, order, "reserve")
    assert day.starts_s["gang-0"] <= 101.0 + 3 * MINUTE_S
    assert day.starts_s["gang-1"] <= day.ends_s["gang-0"] + 2 * MINUTE_S
    assert all(len(run.gpus) == 4 for run in day.recording.runs if run.job_id.startswith("gang"))
