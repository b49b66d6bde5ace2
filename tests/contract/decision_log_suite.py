"""The contract of the decision log; every adapter runs it as a subclass.

A subclass hands in the fixture ``log`` and says how to read back what was stored: ``rows`` and ``events``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.alternative import Alternative
from airflow_provider_eaco.core.model.decision import (
    AdmissionDecision,
    Finding,
    Reason,
    SetPrediction,
    Verdict,
    hold,
    reject,
)
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import DecisionLog
from tests.contract.parts import START_S, make_job, place

KIND = make_job("a", family="alpha").kind
OTHER = make_job("b", family="beta").kind
FULL = hold(Finding(Reason.WAITING_FOR_GPU, {"wanted": 1, "free": 0, "sharing": "no"}))


def admit(placement: Placement) -> AdmissionDecision:
    prediction = SetPrediction({"alpha": 1.02}, power_w=1000.0, utilisation_pct=50.0, measured=True)
    return AdmissionDecision(
        Verdict.ADMIT, placement=placement, co_residents=("other",), prediction=prediction
    )


def plan(*decisions: KindDecision, pool: str = "eaco", at_s: float = START_S) -> Plan:
    order = tuple(job_id for item in decisions for job_id in item.job_ids)
    return Plan(pool, at_s, decisions=decisions, order=order)


class DecisionLogContract:
    """What holds for every :class:`DecisionLog`."""

    @pytest.fixture
    def log(self) -> DecisionLog:
        raise NotImplementedError

    def rows(self, log: DecisionLog) -> list[tuple[str, Verdict, Reason | None]]:
        """Return pool, verdict and reason of every stored decision, oldest first."""
        raise NotImplementedError

    def events(self, log: DecisionLog, job_id: str) -> list[tuple[str, str, float]]:
        """Return event, text and instant of every stored event of the job, oldest first."""
        raise NotImplementedError

    def test_only_what_is_stored_is_ever_explained(self, log: DecisionLog) -> None:
        """A decision that stands already costs no explanation."""
        asked: list[KindDecision] = []

        def explain(item: KindDecision) -> tuple[Alternative, ...]:
            asked.append(item)
            return ()

        items = KindDecision(KIND, ("a",), FULL), KindDecision(OTHER, ("b",), FULL)
        log.record(plan(*items), explain)
        assert all(item in items for item in asked)
        asked.clear()
        log.record(plan(*items, at_s=START_S + 1), explain)
        assert asked == []

    def test_a_first_decision_is_stored(self, log: DecisionLog) -> None:
        """What was not known before is a change, one row for all jobs of the kind."""
        item = KindDecision(KIND, ("a", "a2", "a3"), FULL)
        assert list(log.record(plan(item))) == [item]
        assert self.rows(log) == [("eaco", Verdict.HOLD, Reason.WAITING_FOR_GPU)]

    def test_an_unchanged_decision_adds_nothing(self, log: DecisionLog) -> None:
        """The same verdict, reason and placement is no news, whatever the numbers and the number of jobs."""
        log.record(plan(KindDecision(KIND, ("a",), FULL)))
        later = hold(Finding(Reason.WAITING_FOR_GPU, {"wanted": 1, "free": 3, "sharing": "no"}))
        assert list(log.record(plan(KindDecision(KIND, ("a", "a2"), later), at_s=START_S + 1))) == []
        assert len(self.rows(log)) == 1

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param(hold(Finding(Reason.PROFILE_MISSING)), id="reason"),
            pytest.param(reject(Finding(Reason.WAITING_FOR_GPU)), id="verdict"),
            pytest.param(admit(place(0)), id="placement"),
        ],
    )
    def test_a_changed_decision_is_stored(self, log: DecisionLog, changed: AdmissionDecision) -> None:
        """Another verdict, another first reason, or a placement is a change."""
        log.record(plan(KindDecision(KIND, ("a",), FULL)))
        item = KindDecision(KIND, ("a",), changed)
        assert list(log.record(plan(item, at_s=START_S + 1))) == [item]
        assert self.rows(log)[-1] == ("eaco", changed.verdict, changed.reason)

    def test_an_observed_admission_is_stored_once(self, log: DecisionLog) -> None:
        """Where nothing is granted, the same admission comes in every cycle and is news only once."""
        item = KindDecision(KIND, ("a",), admit(place(0)))
        assert len(log.record(plan(item))) == 1
        assert len(log.record(plan(item, at_s=START_S + 1))) == 0
        moved = KindDecision(KIND, ("a",), admit(place(1)))
        assert len(log.record(plan(moved, at_s=START_S + 2))) == 1

    def test_one_kind_may_be_admitted_and_held_in_one_plan(self, log: DecisionLog) -> None:
        """Two jobs of one kind with places and one without are three answers, each stored once."""
        items = (
            KindDecision(KIND, ("a",), admit(place(0))),
            KindDecision(KIND, ("a2",), admit(place(1))),
            KindDecision(KIND, ("a3",), FULL),
        )
        assert list(log.record(plan(*items))) == list(items)
        assert list(log.record(plan(*items, at_s=START_S + 1))) == []

    def test_one_kind_may_be_held_for_several_reasons_in_one_plan(self, log: DecisionLog) -> None:
        """Who is promised the next place waits for a GPU, the others for him: both answers stand, no news."""
        behind = hold(Finding(Reason.RESERVED_FOR_EARLIER_JOB))
        first, rest = KindDecision(KIND, ("a",), FULL), KindDecision(KIND, ("a2", "a3"), behind)
        assert list(log.record(plan(first, rest))) == [first, rest]
        assert list(log.record(plan(first, rest, at_s=START_S + 1))) == []
        alone = KindDecision(KIND, ("a2", "a3"), FULL)
        assert list(log.record(plan(alone, at_s=START_S + 2))) == []
        assert list(log.record(plan(first, rest, at_s=START_S + 3))) == [rest]

    def test_two_teams_beyond_their_quotas_are_two_answers(self, log: DecisionLog) -> None:
        """What one team has used is not told to another, though their jobs are of one kind."""
        red, blue = (
            KindDecision(KIND, (job_id,), hold(Finding(Reason.OVER_QUOTA, {"team": team, "used": 2.0})))
            for team, job_id in (("red", "a"), ("blue", "a2"))
        )
        assert list(log.record(plan(red, blue))) == [red, blue]
        used_more = hold(Finding(Reason.OVER_QUOTA, {"team": "red", "used": 2.5}))
        assert list(log.record(plan(KindDecision(KIND, ("a",), used_more), blue))) == []

    def test_pools_and_kinds_do_not_mix(self, log: DecisionLog) -> None:
        """The same answer for another kind or in another pool is an answer of its own."""
        log.record(plan(KindDecision(KIND, ("a",), FULL)))
        assert len(log.record(plan(KindDecision(KIND, ("a",), FULL), KindDecision(OTHER, ("b",), FULL)))) == 1
        assert len(log.record(plan(KindDecision(KIND, ("a",), FULL), pool="second"))) == 1
        assert len(log.record(plan(KindDecision(KIND, ("a",), FULL), KindDecision(OTHER, ("b",), FULL)))) == 0

    def test_a_kind_that_comes_back_is_news(self, log: DecisionLog) -> None:
        """A wait that begins after a plan without the kind has a row, and so a beginning, of its own."""
        item = KindDecision(KIND, ("a",), FULL)
        log.record(plan(item))
        log.record(plan(at_s=START_S + 1))
        assert list(log.record(plan(item, at_s=START_S + 2))) == [item]

    def test_an_idle_queue_of_a_thousand_jobs_adds_one_row_a_kind(self, log: DecisionLog) -> None:
        """A thousand jobs that wait for the same reason are one row, however often they are looked at."""
        jobs = tuple(f"job-{index}" for index in range(1000))
        for cycle in range(20):
            log.record(plan(KindDecision(KIND, jobs, FULL), at_s=START_S + cycle))
        assert len(self.rows(log)) == 1

    def test_events_tell_a_jobs_story(self, log: DecisionLog) -> None:
        """Events of one job come back in order, with text and instant, apart from those of others."""
        log.record_event("a", "trial", "with b", START_S)
        log.record_event("b", "trial", "with a", START_S)
        log.record_event("a", "confirmed", "", START_S + 5.5)
        assert self.events(log, "a") == [("trial", "with b", START_S), ("confirmed", "", START_S + 5.5)]

    def test_a_kinds_request_is_part_of_it(self, log: DecisionLog) -> None:
        """Two kinds that differ in one number of the request are two."""
        request = replace(KIND.request, gpu_memory_mib=2000)
        bigger = replace(KIND, request=request)
        assert (
            len(log.record(plan(KindDecision(KIND, ("a",), FULL), KindDecision(bigger, ("b",), FULL)))) == 2
        )
