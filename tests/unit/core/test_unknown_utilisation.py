"""A GPU's or a family's unknown utilisation at admission: not 0 %, and nobody is taken as idle (C45)."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.instruction import Plan
from airflow_provider_eaco.core.model.job import Share
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.policy.registry import POLICIES
from tests.builders import (
    NOW_S,
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_pair,
    make_resident,
    make_snapshot,
    make_solo,
)
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import codes_of, decision_of, launched, texts_of

SHARING = sorted(POLICIES.keys() - {"exclusive"})
# The policies that look at utilisation. The other two pair whoever fits: they do not count on anybody's.
LOOKING = ("eaco", "frontier", "lucid")


def beside(
    book: ProfileBook, readings: tuple[GpuReading, ...] = (), share: Share = Share.AUTO, policy: str = "eaco"
) -> Plan:
    """Let family B wait where A has the only GPU, and there is memory for both."""
    settings = PoolSettings(policy=policy)
    resident = make_resident(make_job("a", "A", 1, max_stretch=None), LeaseState.EXCLUSIVE)
    node = hold_gpus(make_node(gpus=1, model="T4"), resident)
    job = make_job("b", "B", 1, max_stretch=None, share=share)
    return run_checked(
        make_snapshot(node, waiting=[job], profiles=book, settings=settings, readings=readings)
    )


def book_of(a_pct: float | None, b_pct: float | None, pair_pct: float | None) -> ProfileBook:
    """A and B with these utilisations alone and together; together they save energy and time."""
    solos = make_solo("A", utilisation_pct=a_pct), make_solo("B", utilisation_pct=b_pct)
    return make_book(*solos, make_pair({"A": 1.0, "B": 1.0}, utilisation_pct=pair_pct))


@pytest.mark.parametrize("policy", SHARING)
@pytest.mark.parametrize(("busy_pct", "shares"), [(20.0, True), (90.0, False)])
def test_c45_where_the_card_tells_no_utilisation_the_profile_decides(
    policy: str, busy_pct: float, shares: bool
) -> None:
    """A card that is not known to be busy is not taken as idle: light families join, heavy ones do not."""
    unknown = (GpuReading("node-a-gpu00", NOW_S, memory_used_mib=4000, utilisation_pct=None),)
    book = book_of(busy_pct, busy_pct, None)
    plan = beside(book, unknown, policy=policy)
    if policy in LOOKING:
        assert ("b" in launched(plan)) is shares
    known = (GpuReading("node-a-gpu00", NOW_S, memory_used_mib=4000, utilisation_pct=busy_pct),)
    assert launched(plan) == launched(beside(book, known, policy=policy))


@pytest.mark.parametrize("policy", LOOKING)
@pytest.mark.parametrize(
    ("a_pct", "b_pct"), [(None, 20.0), (20.0, None), (None, None)], ids=["resident", "newcomer", "both"]
)
def test_c45_a_profile_without_utilisation_is_no_idle_partner(
    a_pct: float | None, b_pct: float | None, policy: str
) -> None:
    """With 0 % instead of the unknown the two would share: nobody joins, and the job waits with a reason."""
    plan = beside(book_of(a_pct, b_pct, None), policy=policy)
    assert launched(plan) == {}
    assert codes_of(plan, "b") != []
    idle = book_of(*(0.0 if pct is None else pct for pct in (a_pct, b_pct)), None)
    assert "b" in launched(beside(idle, policy=policy))


@pytest.mark.parametrize(("a_pct", "b_pct"), [(None, 20.0), (20.0, None)], ids=["resident", "newcomer"])
def test_c45_the_refusal_to_share_says_what_is_unknown(a_pct: float | None, b_pct: float | None) -> None:
    """Where the set was measured the reason names the utilisation that nobody knows, else the profile that
    does not suffice to estimate it.
    """
    book = book_of(a_pct, b_pct, None)
    plan = beside(book)
    assert codes_of(plan, "b") == ["interference_too_high", "waiting_for_gpu"]
    assert "ask for unknown % of the GPUs' time; allowed: 100 % of it" in texts_of(plan, "b")
    plan = beside(make_book(*book.solo.values()))
    assert codes_of(plan, "b") == ["profile_missing", "waiting_for_gpu"]
    unknown = "A" if a_pct is None else "B"
    assert f"no profile of {unknown} on T4: nobody shares before a first run alone" in texts_of(plan, "b")


def test_c45_a_set_of_unknown_utilisation_is_not_shown_as_idle() -> None:
    """Who insists joins where the pair's own utilisation is known; of the resident's it is said that it is
    not.
    """
    plan = beside(book_of(None, 20.0, 40.0), share=Share.ALWAYS)
    assert "b" in launched(plan)
    assert decision_of(plan, "b").decision.choice == "pack: the busiest set that fits (utilisation unknown)"


def test_c45_a_set_of_unknown_utilisation_is_joined_last() -> None:
    """Of two that fit, one known to be at 0 % counts as busier than one of which nothing is known."""
    settings = PoolSettings()
    solos = make_solo("A", utilisation_pct=None), make_solo("Z", utilisation_pct=0.0), make_solo("B")
    pairs = make_pair({"A": 1.0, "B": 1.0}), make_pair({"B": 1.0, "Z": 1.0})
    node = make_node(gpus=2, model="T4")
    for token, family in enumerate(("A", "Z"), 1):
        job = make_job(family, family, 1, max_stretch=None)
        node = hold_gpus(node, make_resident(job, token=token))
    job = make_job("b", "B", 1, max_stretch=None, share=Share.ALWAYS)
    book = make_book(*solos, *pairs)
    plan = run_checked(make_snapshot(node, waiting=[job], profiles=book, settings=settings))
    assert launched(plan)["b"].placement.gpu_uuids == ("node-a-gpu01",)
