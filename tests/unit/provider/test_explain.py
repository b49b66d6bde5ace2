"""The explanation of a job: the stored sentence, since when, its place, and what would change it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.alternative import Alternative, Way
from airflow_provider_eaco.core.model.decision import (
    AdmissionDecision,
    Finding,
    Reason,
    Verdict,
    hold,
    reject,
)
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.cli.rows import explanation_document
from airflow_provider_eaco.provider.explain import (
    NOT_DECIDED,
    Event,
    Place,
    StandingDecision,
    explain,
    in_words,
)
from airflow_provider_eaco.provider.reference import DOCUMENTS

NOW_S = 1_800_000_600.0
QUEUED_S = 1_800_000_000.0
MEMORY = Finding(Reason.MEMORY_WOULD_OVERFLOW, {"needed_mib": 9000, "free_mib": 4000, "usable_mib": 16000})
FULL = Finding(Reason.WAITING_FOR_GPU, {"wanted": 8, "free": 0, "sharing": "no"})


def record(
    phase: JobPhase = JobPhase.WAITING, *, map_index: int = -1, started_s: float | None = None
) -> JobRecord:
    job = Job("j1", GpuRequest(8, "vgg"), "eaco", QUEUED_S, OrderKey(0.0, "d", "t", 3, "j1"))
    return JobRecord(job, phase, "scheduler-1", started_s=started_s)


def test_the_ways_that_a_job_could_have_run_are_told_in_words() -> None:
    """Of a running job why it is there, what it was started in spite of, and what else there was."""
    taken = Alternative(Way.JOIN, ("J1",), Placement("n1", ("g",)), 1.02, 2e6)
    lost = Alternative(Way.ALONE, (), Placement("n2", ("h",)), 1.0, 3e6, lost="it takes 1.00 MJ more")
    decision = AdmissionDecision(
        Verdict.ADMIT,
        placement=Placement("n1", ("g",)),
        co_residents=("other",),
        choice="the busiest set",
        notes=(Finding(Reason.OVER_ENERGY_BUDGET, {"pool": "eaco", "case": "1.1 of 1.0 kWh"}),),
        alternatives=(taken, lost),
    )
    told = explain(record(JobPhase.RUNNING), StandingDecision(decision, QUEUED_S), None, NOW_S)
    words = in_words(told, NOW_S)
    at = words.index("  why there: the busiest set")
    assert words[at - 1] == (
        "  started all the same: over_energy_budget: energy budget of pool eaco: 1.1 of 1.0 kWh"
    )
    assert words[at + 1 : at + 4] == [
        "  where it could have run:",
        "    - beside J1 on n1: 2.00 MJ, slowdown 1.020; taken",
        "    - GPUs of its own on n2: 3.00 MJ; not taken: it takes 1.00 MJ more",
    ]
    document = explanation_document(told)
    assert document["alternatives"] == [
        {
            "way": "join",
            "families": ["J1"],
            "node": "n1",
            "slowdown": 1.02,
            "energy_j": 2e6,
            "of_one_unit": False,
            "why_not": None,
        },
        {
            "way": "alone",
            "families": [],
            "node": "n2",
            "slowdown": 1.0,
            "energy_j": 3e6,
            "of_one_unit": False,
            "why_not": "it takes 1.00 MJ more",
        },
    ]


def test_a_waiting_job_has_its_most_severe_reason_first_and_keeps_the_others() -> None:
    """The stored order of findings is shown: one reason, since when, where in the queue, and all others."""
    told = explain(record(), StandingDecision(hold(FULL, MEMORY), QUEUED_S + 60), Place(3, 17, "eaco"), NOW_S)
    assert told.reason is not None
    assert (told.reason.code, told.reason.sentence) == (MEMORY.reason.code, MEMORY.text)
    assert told.reason.remedy == MEMORY.reason.remedy
    assert [other.sentence for other in told.also] == [FULL.text]
    assert told.task == "d.t[3]"
    assert (told.since_s, told.place, told.waited_s) == (QUEUED_S + 60, Place(3, 17, "eaco"), 600.0)
    words = "\n".join(in_words(told, NOW_S))
    assert "position 3 of 17 in pool eaco" in words
    assert f"memory_would_overflow, since 2027-01-15 08:01:00 UTC (9 min): {MEMORY.text}" in words
    assert f"what would change it: {MEMORY.reason.remedy}" in words
    assert FULL.text in words


@pytest.mark.parametrize(
    "standing",
    [
        pytest.param(None, id="nothing-stored"),
        pytest.param(
            StandingDecision(AdmissionDecision(Verdict.ADMIT), QUEUED_S), id="admission-of-an-earlier-time"
        ),
    ],
)
def test_a_waiting_job_never_has_no_reason(standing: StandingDecision | None) -> None:
    """Before a scheduler has looked at it, that is what is said; nothing is guessed."""
    told = explain(record(), standing, None, NOW_S)
    assert told.reason is not None
    assert (told.reason.code, told.reason.sentence) == ("unknown", NOT_DECIDED)
    assert told.since_s is None
    assert "since unknown" in "\n".join(in_words(told, NOW_S))


def test_a_rejected_job_keeps_the_reason_of_its_rejection() -> None:
    """After a rejection the reason stays, without a place in the queue."""
    finding = Finding(Reason.NO_SUCH_GPU, {"wanted": "16 V100", "largest": "8 V100"})
    told = explain(
        record(JobPhase.REJECTED), StandingDecision(reject(finding), 1.0), Place(1, 1, "eaco"), NOW_S
    )
    assert told.reason is not None
    assert told.reason.sentence == finding.text
    assert told.place is None


def test_a_running_job_tells_its_story_in_order() -> None:
    """A job that runs has no reason to wait; its events stand in the order in which they happened."""
    events = [Event(QUEUED_S + 9, "trial", "beside d.u"), Event(QUEUED_S + 5, "launched", "on n1")]
    standing = StandingDecision(hold(FULL), 1.0)
    running = record(JobPhase.RUNNING, started_s=QUEUED_S + 5)
    told = explain(running, standing, None, NOW_S, story=events)
    assert told.reason is None
    assert [event.event for event in told.story] == ["launched", "trial"]
    assert told.waited_s == 5.0
    words = in_words(told, NOW_S)
    assert words[-1] == "  energy: unknown"
    assert "launched: on n1" in words[-3]


# Airflow's API, which the routes need, imports a test client that warns of its own dependency.
@pytest.mark.filterwarnings("ignore:Using `httpx`")
@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_document_made_from_code_is_fresh(name: str) -> None:
    """Each document in docs/reference that is made from code is what its command writes now."""
    stored = Path(__file__).resolve().parents[3] / "docs" / "reference" / f"{name}.md"
    assert stored.read_text() == DOCUMENTS[name]()
