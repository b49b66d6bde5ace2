"""The review of sets that share GPUs: confirm, undo, end unconfirmed, or go on watching."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_eaco.core.model.instruction import Confirm, Unconfirmed, Yield
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import Observation, Resident
from airflow_provider_eaco.core.policy.base import Review
from airflow_provider_eaco.core.policy.trial import review_set, trial_since_s
from tests.builders import (
    NOW_S,
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_progress,
    make_resident,
    make_snapshot,
    make_solo,
)

BOOK = make_book(make_solo("A", units_total=100), make_solo("B", units_total=100))


def member(
    name: str,
    unit_s: float | None,
    state: LeaseState = LeaseState.TRIAL,
    *,
    can_yield: bool = True,
    granted_s: float = NOW_S - 1000,
    max_stretch: float | None = 1.2,
    progress: Any = None,
    **job: Any,
) -> Resident:
    """A resident of family A (named a...) or B, 100 s a unit alone, that reported one unit of ``unit_s``."""
    progress = progress or make_progress(0, 100, can_yield=can_yield)
    work = make_job(name, name[0].upper(), 1, progress=progress, max_stretch=max_stretch, **job)
    return make_resident(work, state, granted_s=granted_s, unit_s=unit_s)


def review(*residents: Resident, limit_s: float = 5000.0, time_scale: float = 1.0) -> Review | None:
    """Review these residents together on one T4."""
    node = hold_gpus(make_node(gpus=1, model="T4", time_scale=time_scale), *residents)
    settings = PoolSettings(trial_limit_s=limit_s)
    return review_set(node.sets[0], make_snapshot(node, profiles=BOOK, settings=settings))


def test_a_trial_is_confirmed_when_every_member_has_one_unit_within_limits() -> None:
    """Two members at 1.1 times under a limit of 1.2 are confirmed under their set's version."""
    placement = hold_gpus(make_node(gpus=1, model="T4"), member("a", 110.0)).sets[0].placement
    assert review(member("a", 110.0), member("b", 110.0)) == Confirm(placement, 1)


WATCHING = {
    "one has not reported": [member("a", 110.0), member("b", None)],
    "one reported under an older set": [
        member("a", 110.0),
        replace(member("b", 110.0), observation=Observation(0, 3, 110.0, 330.0)),
    ],
    "no complete unit": [
        member("a", 110.0),
        replace(member("b", 110.0), observation=Observation(1, 0, None, 50.0)),
    ],
    "nothing to compare with": [
        member("a", 110.0),
        make_resident(make_job("c", "C", 1), LeaseState.TRIAL, unit_s=500.0),
    ],
    "somebody leaves already": [member("a", 900.0), member("b", 110.0, LeaseState.YIELDING)],
    "alone": [member("a", 900.0)],
}


@pytest.mark.parametrize("case", WATCHING)
def test_without_every_members_evidence_nothing_is_decided(case: str) -> None:
    """A trial goes on until each member has a complete unit that began and ended under the set."""
    assert review(*WATCHING[case]) is None


def test_a_trial_without_reports_ends_unconfirmed_after_its_limit() -> None:
    """Wall time since the last change counts; it is told once."""
    residents = [member("a", 110.0), member("b", None)]
    assert review(*residents, limit_s=1001.0) is None
    ended = review(*residents, limit_s=1000.0)
    assert isinstance(ended, Unconfirmed)
    told = [replace(resident, state=LeaseState.UNCONFIRMED) for resident in residents]
    assert review(*told, limit_s=1000.0) is None
    late = [
        replace(resident, state=LeaseState.UNCONFIRMED) for resident in (residents[0], member("b", 105.0))
    ]
    assert isinstance(review(*late), Confirm), "evidence that comes late still confirms"


def test_the_last_change_is_the_newest_of_grants_and_departures() -> None:
    """A departure restarts the trial's clock as a grant does."""
    stayed = make_resident(make_job("a"), granted_s=10.0, trial_since_s=50.0)
    joined = make_resident(make_job("b"), granted_s=40.0)
    assert trial_since_s(hold_gpus(make_node(), stayed, joined).sets[0]) == 50.0


def test_c59_a_slow_set_is_undone_within_the_window_by_the_newest_that_can() -> None:
    """1.6 times against 1.2: the newest member with a checkpoint is asked, once."""
    old = member("a", 160.0, granted_s=NOW_S - 3000)
    new = member("b1", 110.0, granted_s=NOW_S - 1000)
    newest = member("b2", 110.0, granted_s=NOW_S - 900, can_yield=False)
    undone = review(old, new, newest)
    assert isinstance(undone, Yield)
    assert undone.job_id == "b1"
    assert undone.why == (
        "dag.a runs at 1.600 times its unit time alone;"
        " its whole run would stretch to 1.600, its limit is 1.200"
    )
    asked = replace(new, state=LeaseState.YIELDING)
    assert review(old, asked, newest) is None, "nobody else is asked while one leaves"


def test_a_slow_set_in_which_nobody_can_yield_stays_and_is_closed() -> None:
    """Without a checkpoint nobody is asked; the set ends unconfirmed and that is told once."""
    residents = [member("a", 160.0, can_yield=False), member("b", 110.0, can_yield=False)]
    assert isinstance(review(*residents), Unconfirmed)
    assert review(*[replace(resident, state=LeaseState.UNCONFIRMED) for resident in residents]) is None


def test_the_whole_run_counts_not_the_epoch() -> None:
    """A run that is nearly over bears a slow rest; the same pace at its start does not."""
    late = make_progress(90, 100, can_yield=True)
    assert isinstance(review(member("a", 160.0, progress=late), member("b", 110.0)), Confirm)
    assert isinstance(review(member("a", 160.0), member("b", 110.0)), Yield)


def test_the_time_alone_is_the_runs_own_where_it_was_seen() -> None:
    """A run that took 150 s alone is not slow at 160 s, whatever its family's profile says."""
    own = make_progress(1, 100, can_yield=True, unit_s=150.0, solo_unit_s=150.0)
    assert isinstance(review(member("a", 160.0, progress=own), member("b", 110.0)), Confirm)


def test_a_deadline_is_judged_in_wall_time() -> None:
    """100 units of 110 s need 11000 s: too long for 10500 s of wall time, not on a node ten times as fast."""
    bound = member("a", 110.0, max_stretch=None, deadline_s=10_500.0)
    undone = review(bound, member("b", 110.0))
    assert isinstance(undone, Yield)
    assert undone.why.endswith("its deadline allows 1.050 from now on")
    assert isinstance(review(bound, member("b", 110.0), time_scale=10.0), Confirm)


def test_a_confirmed_set_is_reviewed_by_what_has_been_reported() -> None:
    """A confirmed set goes on while its limits hold, whoever has not reported; a new slow epoch undoes it."""
    confirmed = LeaseState.CONFIRMED
    assert review(member("a", None, confirmed), member("b", 110.0, confirmed)) is None
    undone = review(member("a", None, confirmed), member("b", 160.0, confirmed))
    assert isinstance(undone, Yield)
    assert isinstance(
        review(
            member("a", 160.0, confirmed, can_yield=False), member("b", 110.0, confirmed, can_yield=False)
        ),
        Unconfirmed,
    )


def test_rounding_breaks_no_limit() -> None:
    """A slowdown that equals the limit up to the last digits keeps it."""
    assert isinstance(review(member("a", 120.00000000001), member("b", 110.0)), Confirm)
