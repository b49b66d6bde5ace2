"""Carrying plans out where a policy insists: what has been done is not done again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.instruction import Confirm, Plan, Unconfirmed, Yield
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.engine.applier import Applied, Applier
from airflow_provider_eaco.engine.snapshots import SnapshotBuilder
from tests.builders import make_job
from tests.unit.engine.rig import Rig, unlimited


@pytest.fixture
def rig() -> Rig:
    """A rig with one set of a and b, of which each has one unit of 160 s."""
    rig = Rig()
    rig.add(make_job("a", "A", gpus=1, run_after_s=1), make_job("b", "B", gpus=1, run_after_s=2))
    rig.loop.run_once()
    rig.start("a", "b")
    rig.unit("a", 160.0)
    rig.unit("b", 160.0)
    return rig


def snapshot(rig: Rig) -> ClusterSnapshot:
    pools = unlimited(PoolSettings())
    return SnapshotBuilder(None).build(rig.ledger.view(), pools, rig.profiles.book(), {})["eaco"]


def apply(rig: Rig, review: Confirm | Unconfirmed | Yield) -> Applied:
    now = snapshot(rig)
    applied = Applied()
    applier = Applier(rig.ledger, rig.profiles, rig.log)
    applier.apply(Plan("eaco", now.now_s, (review,)), now, {}, {}, applied)
    return applied


def test_who_was_admitted_by_the_same_plan_is_named(rig: Rig) -> None:
    """The story names tasks, not ids, also where both of a set have come in one cycle."""
    told = {row.job_id: row.text for row in rig.log.events if row.event == "trial"}
    assert told == {"a": "dag.b joined on 1 GPU on n1", "b": "1 GPU on n1, with dag.a"}


def test_a_set_is_confirmed_once(rig: Rig) -> None:
    """A policy that confirms in every cycle teaches and tells only once."""
    review = Confirm(rig.held("a").placement, rig.held("a").set_version)
    assert apply(rig, review).confirmed == [review.placement]
    revision, events = rig.profiles.book().revision, len(rig.log.events)
    assert apply(rig, review) == Applied()
    assert (rig.profiles.book().revision, len(rig.log.events)) == (revision, events)


def test_a_member_is_asked_once(rig: Rig) -> None:
    """A policy that asks for the same yield in every cycle counts one undo and tells it once."""
    lease = rig.held("b")
    review = Yield("b", lease.placement, lease.set_version, "too slow")
    assert apply(rig, review).yielding == ["b"]
    assert apply(rig, review) == Applied()
    (learned,) = rig.profiles.book().coallocation.values()
    assert learned.undone == 1
    assert rig.story("b") == ["trial", "undone"]
    told = [row.text for row in rig.log.events if row.event == "undone"]
    assert told == ["dag.b was asked to leave: too slow", "too slow"]


@pytest.mark.parametrize("kind", [Confirm, Unconfirmed])
def test_a_review_of_a_set_that_has_changed_does_nothing(rig: Rig, kind: type[Confirm | Unconfirmed]) -> None:
    """What was decided about other members is not carried out."""
    lease = rig.held("a")
    assert apply(rig, kind(lease.placement, lease.set_version - 1)) == Applied()
    assert apply(rig, kind(Placement("n1", ("elsewhere",)), lease.set_version)) == Applied()
    assert apply(rig, kind(Placement("nowhere", ("elsewhere",)), lease.set_version)) == Applied()
    assert rig.held("a").state is LeaseState.TRIAL


def test_an_observation_of_other_members_teaches_nothing(rig: Rig) -> None:
    """Units that were seen under an older set are not taken for the present one's."""
    record = rig.ledger.record_of("a")
    assert record is not None
    assert record.observation is not None
    older = replace(record.observation, set_version=record.observation.set_version - 1)
    rig.ledger.save_progress("a", record.job.progress, older)
    revision = rig.profiles.book().revision
    lease = rig.held("a")
    assert apply(rig, Confirm(lease.placement, lease.set_version)).confirmed == [lease.placement]
    assert rig.profiles.book().revision == revision
