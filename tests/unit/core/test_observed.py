"""The ledger as if one observed job waited: who holds what beside it, and what is nobody's."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.observed import seen_with_observed
from airflow_provider_eaco.core.ports import JobRecord, LedgerView
from tests.builders import make_job, make_node

NODE = replace(make_node("n1", gpus=3).node, available=False)
UUIDS = tuple(gpu.uuid for gpu in NODE.gpus)


def lease(job_id: str, *indexes: int, token: int, granted_s: float = 0.0) -> Lease:
    placement = Placement("n1", tuple(UUIDS[index] for index in indexes))
    return Lease(token, job_id, placement, LeaseState.OBSERVED, 0, granted_s)


def view(*leases: Lease) -> LedgerView:
    held = JobRecord(make_job("held", gpus=1), JobPhase.RUNNING, "me")
    return LedgerView(0.0, (NODE,), (held,), leases)


RECORDS = tuple(JobRecord(make_job(name, gpus=1), JobPhase.RUNNING, "observed") for name in "abc")


def test_those_that_began_before_it_hold_their_gpus() -> None:
    """It waits itself, later ones are not there yet, and of one instant the first told comes first."""
    observed = [
        lease("a", 0, token=1, granted_s=5),
        lease("b", 1, token=2, granted_s=5),
        lease("c", 2, token=3, granted_s=9),
    ]
    seen, contested = seen_with_observed(view(), observed, RECORDS, {"n1"}, "b")
    assert [(each.job_id, each.state) for each in seen.leases] == [("a", LeaseState.EXCLUSIVE)]
    assert contested == frozenset()
    assert {each.job.job_id: each.phase for each in seen.jobs if each.phase is JobPhase.WAITING} == {
        "b": JobPhase.WAITING
    }
    assert [node.available for node in seen.nodes] == [True]


def test_a_node_without_a_sampler_stays_as_it_is() -> None:
    """One that is unavailable for another reason is not offered."""
    seen, _ = seen_with_observed(view(), [], (), set(), "a")
    assert [node.available for node in seen.nodes] == [False]


def test_those_on_one_set_share_it_and_count_as_confirmed() -> None:
    """They run on together whatever anybody says."""
    observed = [lease("a", 0, token=1), lease("b", 0, token=2), lease("c", 1, token=3, granted_s=9)]
    seen, contested = seen_with_observed(view(), observed, RECORDS, {"n1"}, "c")
    assert {each.state for each in seen.leases} == {LeaseState.CONFIRMED}
    assert contested == frozenset()


def test_sets_that_overlap_are_nobody_s() -> None:
    """All GPUs of both, also where one of the two is held by right."""
    observed = [lease("a", 0, 1, token=1), lease("b", 1, 2, token=2), lease("c", 2, token=3, granted_s=9)]
    seen, contested = seen_with_observed(view(), observed, RECORDS, {"n1"}, "c")
    assert (seen.leases, contested) == ((), frozenset(UUIDS))
    held = replace(lease("held", 0, token=4), state=LeaseState.EXCLUSIVE)
    seen, contested = seen_with_observed(view(held), observed[:1], RECORDS, {"n1"}, "c")
    assert (seen.leases, contested) == ((held,), frozenset(UUIDS[:2]))


def test_for_any_other_job_all_observed_ones_are_there() -> None:
    """Nobody is left out when it is planned for those that really wait."""
    observed = [lease("a", 0, token=1), lease("b", 1, token=2)]
    seen, _ = seen_with_observed(view(), observed, RECORDS, {"n1"}, "")
    assert [each.job_id for each in seen.leases] == ["a", "b"]
    assert {each.job.job_id: each.phase for each in seen.jobs} == dict.fromkeys(
        ("held", "a", "b", "c"), JobPhase.RUNNING
    )
