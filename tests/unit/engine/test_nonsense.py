"""What a user's policy or a task may get wrong, and how far it reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Reason, Verdict, hold
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.eaco import EacoPolicy
from airflow_provider_eaco.core.policy.registry import make_policy
from airflow_provider_eaco.engine.progress import InvalidReportError, parse_report
from tests.builders import make_job
from tests.unit.engine.rig import Rig, unlimited

Decide = Callable[[Job, ClusterSnapshot], AdmissionDecision]


def _raise(error: BaseException) -> AdmissionDecision:
    raise error


ANSWERS: dict[str, Callable[[AdmissionDecision], object]] = {
    "nothing": lambda _: None,
    "a text": lambda _: "admit",
    "a node that is not there": lambda good: replace(good, placement=Placement("nowhere", ("u",))),
    "a GPU that is not there": lambda good: replace(good, placement=Placement("n1", ("u",))),
    "no GPU": lambda good: replace(good, placement=Placement("n1", ())),
    "GPUs as a list": lambda good: replace(good, placement=Placement("n1", ["n1/0"])),  # type: ignore[arg-type]  # the point
    "an admission without a place": lambda _: AdmissionDecision(Verdict.ADMIT),
    "not a number": lambda _: hold(Finding(Reason.MISCONFIGURED, {"problem": float("nan")})),
    "a reason of its own": lambda _: AdmissionDecision(Verdict.HOLD, (Finding("why not", {}),)),  # type: ignore[arg-type]  # the point
    "an exception": lambda _: _raise(ValueError("no")),
    "an exit": lambda _: _raise(SystemExit(3)),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_nonsense_of_a_policy_holds_its_own_pool_only(answer: Callable[[AdmissionDecision], object]) -> None:
    """Whatever a policy answers, the cycle ends with a report and the other pool's job gets its GPU."""

    class Nonsense(EacoPolicy):
        def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
            return answer(super().decide(job, snapshot))  # type: ignore[return-value]  # the point

    rig = Rig(pools=unlimited(PoolSettings(name="bad", policy="nonsense"), PoolSettings(name="eaco")))
    rig.loop = rig.make_loop(
        "planner", policy_of=lambda pool: Nonsense(pool) if pool.name == "bad" else make_policy(pool)
    )
    rig.add(replace(make_job("a", "A", gpus=1), pool="bad"), replace(make_job("b", "B", gpus=1), pool="eaco"))
    report = rig.loop.run_once()
    assert report.planned
    assert report.problem is None
    assert "b" in {lease.job_id for lease in report.granted}


GOOD = {"v": 1, "token": 1, "try_number": 1, "units_done": 1, "units_total": 5, "recent": []}
REPORTS = {
    "more units than any column holds": {"units_total": 10**19},
    "a count beyond all bounds": {"units_done": 10**400},
    "seconds beyond any float": {"recent": [[0, 10**400, None, None]]},
    "seconds that no sum bears": {"recent": [[number, 1.7e308, None, None] for number in range(4)]},
    "seconds that are not a number": {"recent": [[0, float("nan"), None, None]]},
}


@pytest.mark.parametrize("wrong", REPORTS.values(), ids=REPORTS)
def test_a_report_beyond_all_bounds_is_no_report(wrong: dict[str, object]) -> None:
    """A number that no store or sum can bear is refused when it is read, by the error that callers expect."""
    with pytest.raises(InvalidReportError):
        parse_report("job", {**GOOD, **wrong})
