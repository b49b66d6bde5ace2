"""Cycles that would do nothing are left out, and nothing else changes by that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from airflow_provider_eaco.core.model.instruction import Yield
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy import reviews
from airflow_provider_eaco.core.policy.base import Review
from airflow_provider_eaco.core.policy.trial import newest_that_can_yield, review_set
from airflow_provider_eaco.simulator import reporting
from airflow_provider_eaco.simulator.beliefs import UNIT_S, Belief
from airflow_provider_eaco.simulator.recording import Recording
from airflow_provider_eaco.simulator.reporting import Reporting
from airflow_provider_eaco.simulator.runner import Simulation
from airflow_provider_eaco.simulator.scenario import Choices, from_trace
from airflow_provider_eaco.simulator.trace import TraceJob, write_trace
from airflow_provider_eaco.simulator.trials import Trials


def _day(path: Path, choices: Choices) -> Recording:
    draw = random.Random(5)
    jobs, at_s = [], 0.0
    for number in range(50):
        family, gpus = draw.choice(["J1", "J2", "J3", "J4"]), draw.choice([8, 8, 4])
        work_s, limit = round(draw.uniform(3000, 20000), 3), draw.choice([1.02, 1.2, None])
        jobs.append(TraceJob(f"job-{number:02d}", family, gpus, round(at_s, 3), work_s, limit))
        at_s += draw.expovariate(1 / 2500)
    return _simulation(path, jobs, choices).run()


def _simulation(path: Path, jobs: Sequence[TraceJob], choices: Choices) -> Simulation:
    write_trace(path, jobs)
    return Simulation(from_trace(path, choices))


# Of what is believed of sets, or learnt where nothing is, trials go both ways or well.
@pytest.mark.parametrize(("belief", "some_undone"), [(Belief.KNOWN, True), (Belief.SOLO, False)])
def test_who_judges_ahead_decides_as_who_always_plans(
    tmp_path: Path, belief: Belief, some_undone: bool
) -> None:
    """A report of a trial after which no review is due changes nothing, so that its cycle can be left out."""
    choices = Choices("eaco", belief=belief, belief_error=0.3, nodes=4)
    judged = _day(tmp_path / "day.csv", choices)
    with patch.object(Trials, "are_news", return_value=True):
        planned = _day(tmp_path / "day.csv", choices)
    assert judged.confirmed
    assert bool(judged.undone) is some_undone
    assert len(judged.decision_s) < len(planned.decision_s)
    for name in ("runs", "nodes", "decisions", "trials", "confirmed", "undone"):
        assert getattr(judged, name) == getattr(planned, name)


@pytest.mark.parametrize("policy", ["eaco", "gandiva", "lucid", "frontier"])
def test_epochs_that_are_told_late_decide_as_those_told_at_once(tmp_path: Path, policy: str) -> None:
    """What jobs report that are alone, or whose trial is over, counts as if at once when it is asked for."""
    choices = Choices(policy, belief=Belief.SOLO, belief_error=0.3, nodes=4)
    with patch.object(reporting, "ingest_one", side_effect=reporting.ingest_one) as taken_in:
        late = _day(tmp_path / "day.csv", choices)
    with patch.object(Reporting, "pass_quiet_epochs"):
        at_once = _day(tmp_path / "day.csv", choices)
    assert max(len(call.args[2]) for call in taken_in.call_args_list) > 1
    for name in ("runs", "nodes", "limits", "decisions", "trials", "confirmed", "undone"):
        assert getattr(late, name) == getattr(at_once, name)


# Submission and work by job. Epochs take a fifth of the work, 1404 s at most, and more beside others.
@pytest.mark.parametrize(
    ("trace", "enough_s"),
    [
        # 0 and 1 have done enough while 3's trial is watched, and the next to report is 2 with a short epoch.
        ([(0, 4500), (10, 4500), (1900, 3000), (1910, 20000)], 4000),
        # 2's arrival lets 1 leave; until it does 0 completes two epochs.
        ([(0, 3000), (100, 20000), (1600, 3000)], 2000),
    ],
)
def test_confirmed_sets_end_as_if_all_was_told_at_once(
    tmp_path: Path, trace: Sequence[tuple[float, float]], enough_s: int
) -> None:
    """What a confirmed set has reported is known whenever a trial is judged, and before anybody leaves it."""
    jobs = [TraceJob(f"job-{number}", "J1", 8, *times, None) for number, times in enumerate(trace)]
    choices = Choices("eaco", belief=Belief.SOLO, nodes=3, max_residents=2)
    with patch.object(reviews, "review_set", partial(_impatient, enough_s)):
        late = _simulation(tmp_path / "late.csv", jobs, choices)
        told_late = late.run()
        at_once = _simulation(tmp_path / "once.csv", jobs, choices)
        with patch.object(Reporting, "pass_quiet_epochs"):
            told_at_once = at_once.run()
    assert told_late.undone
    for name in ("runs", "nodes", "decisions", "trials", "confirmed", "undone"):
        assert getattr(told_late, name) == getattr(told_at_once, name)
    assert len(told_late.decision_s) == len(told_at_once.decision_s)
    assert late.profiles.book().solo == at_once.profiles.book().solo


def _impatient(enough_s: int, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
    """Judge as the paper does, and end a confirmed set whose members have done enough together."""
    done_s = UNIT_S * sum(resident.job.progress.units_done for resident in held.residents)
    confirmed = all(resident.state is LeaseState.CONFIRMED for resident in held.residents)
    leaver = newest_that_can_yield(held)
    if confirmed and done_s > enough_s and leaver is not None:
        return Yield(leaver.job.job_id, held.placement, leaver.set_version, "done enough")
    return review_set(held, snapshot)
