"""Cycles that would do nothing are left out, and nothing else changes by that."""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import patch

import pytest

from airflow_provider_eaco.simulator import reporting
from airflow_provider_eaco.simulator.beliefs import Belief
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
    write_trace(path, jobs)
    return Simulation(from_trace(path, choices)).run()


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
    """What a job alone on its GPUs reports counts for nothing until somebody plans, then as if at once."""
    choices = Choices(policy, belief=Belief.SOLO, belief_error=0.3, nodes=4)
    with patch.object(reporting, "ingest_one", side_effect=reporting.ingest_one) as taken_in:
        late = _day(tmp_path / "day.csv", choices)
    with patch.object(Reporting, "pass_quiet_epochs"):
        at_once = _day(tmp_path / "day.csv", choices)
    assert max(len(call.args[2]) for call in taken_in.call_args_list) > 1
    for name in ("runs", "nodes", "limits", "decisions", "trials", "confirmed", "undone"):
        assert getattr(late, name) == getattr(at_once, name)
