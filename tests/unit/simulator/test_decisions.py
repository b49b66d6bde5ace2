"""The decision log of a simulation: a line for every job whose answer is news for it."""

from __future__ import annotations

from airflow_provider_eaco.core.model.decision import Finding, Reason, hold
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.simulator.decisions import DecisionRecorder
from airflow_provider_eaco.simulator.recording import Recording
from tests.contract.parts import make_job

JOBS = [make_job(name) for name in ("a", "b", "c", "d")]
KIND = JOBS[0].kind
FULL = hold(Finding(Reason.WAITING_FOR_GPU, {"wanted": 1, "free": 0, "sharing": "no"}))
BEHIND = hold(Finding(Reason.RESERVED_FOR_EARLIER_JOB))


def test_each_job_gets_a_line_when_what_it_is_told_changes() -> None:
    """Also where the answer stands for others of its kind: who comes later, who is next, who no longer is."""
    recording = Recording()
    log = DecisionRecorder(recording, ProfileBook, lambda job_id: 0.0, {}, "V100")
    plans = [
        ("abc", [("a", FULL), ("bc", BEHIND)]),
        ("d", [("a", FULL), ("bcd", BEHIND)]),
        ("", [("b", FULL), ("cd", BEHIND)]),
        ("", [("cd", FULL)]),
    ]
    for number, (arriving, decided) in enumerate(plans):
        for job in JOBS:
            if job.job_id in arriving:
                log.expect(job)
        decisions = tuple(KindDecision(KIND, tuple(ids), answer) for ids, answer in decided)
        log.record(Plan("eaco", float(number), decisions=decisions))
    told = [(row.time_s, row.job_id, row.reason) for row in recording.decisions]
    waiting, behind = Reason.WAITING_FOR_GPU.code, Reason.RESERVED_FOR_EARLIER_JOB.code
    assert told == [
        (0.0, "a", waiting),
        (0.0, "b", behind),
        (0.0, "c", behind),
        (1.0, "d", behind),
        (2.0, "b", waiting),
        (3.0, "c", waiting),
        (3.0, "d", waiting),
    ]
