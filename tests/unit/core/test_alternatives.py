"""Alternatives of decisions: what was taken, what else there was, with joules and why it lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.alternative import Alternative, Way
from airflow_provider_eaco.core.model.energy_budget import EnergyBudget
from airflow_provider_eaco.core.model.instruction import Plan
from airflow_provider_eaco.core.model.job import Share
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings, Spreading
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.alternatives import MOST, Explainer
from airflow_provider_eaco.core.policy.registry import POLICIES, make_ordering, make_policy, make_rules
from tests.builders import (
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_pair,
    make_progress,
    make_resident,
    make_snapshot,
    make_solo,
)
from tests.unit.core.plans import decision_of

BOOK = make_book(
    *(make_solo(name, units_total=10, checkpoints=True) for name in "ABC"),
    make_pair({"A": 1.02, "B": 1.02}, power_w=45.0),
    make_pair({"A": 1.5, "C": 1.5}, power_w=45.0),
)
BESIDE_C = "beside C on n-C: 27.5 kJ, slowdown 1.500; not taken: "
C_WOULD_MISS = (
    "a resident would miss its limit: dag.r-C would take 1.500 times as long as alone, it bears 1.100 times"
)


def cluster(policy: str = "eaco", *families: str, free: int = 1, **changes: object) -> ClusterSnapshot:
    """Nodes of one T4, one for each family that runs alone there, and free ones; A waits."""
    held = [
        hold_gpus(make_node(f"n-{name}", gpus=1, model="T4"), make_resident(make_job(f"r-{name}", name, 1)))
        for name in families
    ]
    empty = [make_node(f"n-free{number}", gpus=1, model="T4") for number in range(free)]
    settings = PoolSettings(policy=policy, **changes)  # type: ignore[arg-type]  # by name
    waiting = [make_job("a", "A", 1)]
    return make_snapshot(*held, *empty, waiting=waiting, settings=settings, profiles=BOOK)


def explained(snapshot: ClusterSnapshot, job_id: str = "a") -> tuple[Alternative, ...]:
    settings = snapshot.pool.settings
    policy = make_policy(settings)
    plan: Plan = run_cycle(policy, make_ordering(settings.ordering), snapshot, make_rules(settings))
    return Explainer(policy, snapshot, plan).alternatives(decision_of(plan, job_id))


def texts(snapshot: ClusterSnapshot, job_id: str = "a") -> list[str]:
    return [each.text for each in explained(snapshot, job_id)]


def test_the_one_that_was_taken_comes_first_then_what_else_there_was() -> None:
    """Joules of the rest of the run, slowdowns, and what spoke against each."""
    assert texts(cluster("eaco", "B", "C")) == [
        "beside B on n-B: 5.9 kJ, slowdown 1.020; taken",
        "GPUs of its own on n-free0: 40.0 kJ; not taken: it takes 34.1 kJ more",
        f"{BESIDE_C}{C_WOULD_MISS}",
    ]


def test_a_policy_that_shares_nothing_says_so() -> None:
    """The joules that sharing would have taken stand there all the same."""
    assert texts(cluster("exclusive", "B")) == [
        "GPUs of its own on n-free0: 40.0 kJ; taken",
        "beside B on n-B: 5.9 kJ, slowdown 1.020; not taken: policy exclusive shares no GPUs",
    ]


def test_a_task_that_wants_gpus_of_its_own_says_so_of_every_set() -> None:
    """That is why it waits beside a set that it would fit into, not what the others wait for."""
    snapshot = cluster("eaco", "B", free=0)
    alone = [replace(job, request=replace(job.request, share=Share.NEVER)) for job in snapshot.waiting]
    joined, own = texts(replace(snapshot, waiting=tuple(alone)))
    assert joined == ("beside B on n-B: 5.9 kJ, slowdown 1.020; not taken: the task asks for GPUs of its own")
    assert own == "GPUs of its own: 40.0 kJ; not taken: no node has as many GPUs free"


def test_what_was_not_the_cheapest_was_chosen_by_the_policys_own_rule() -> None:
    """A spreading pool takes free GPUs although joining would take less."""
    own, joined = texts(cluster("eaco", "B", spreading=Spreading.SPREAD))
    assert own == "GPUs of its own on n-free0: 40.0 kJ; taken"
    assert "it takes 34.1 kJ less, and the policy chose by its own rule (spread: of the fitting" in joined


def test_a_job_that_waits_has_only_what_was_not_taken() -> None:
    """Of places that are not there, too: nothing is free, and a set takes nobody."""
    snapshot = cluster("eaco", "C", free=0)
    assert texts(snapshot) == [
        f"{BESIDE_C}{C_WOULD_MISS}",
        "GPUs of its own: 40.0 kJ; not taken: no node has as many GPUs free",
    ]
    leaving = make_resident(make_job("r", "B", 1), LeaseState.YIELDING)
    closed = hold_gpus(make_node("n", gpus=1, model="T4"), leaving)
    snapshot = replace(snapshot, nodes={"n": closed})
    assert texts(snapshot)[-1] == "other sets: a resident is leaving (1 of 1)"


def test_who_is_held_by_a_budget_sees_what_would_fit() -> None:
    """The place was there; the budget was not."""
    found = texts(cluster("eaco", "B", energy_budget=EnergyBudget(power_w=41.0)))
    lost = "not taken: it would fit; the task waits for over_energy_budget"
    assert found == [
        f"beside B on n-B: 5.9 kJ, slowdown 1.020; {lost}",
        f"GPUs of its own on n-free0: 40.0 kJ; {lost}",
    ]


def test_unknown_joules_and_lengths_are_not_guessed() -> None:
    """Without a total the figure is of one unit; without a profile there is none."""
    book = make_book(make_solo("A"), make_solo("B"))
    snapshot = replace(cluster("exclusive"), profiles=book)
    assert texts(snapshot) == ["GPUs of its own on n-free0: 4.0 kJ a unit; taken"]
    assert texts(replace(snapshot, profiles=make_book())) == [
        "GPUs of its own on n-free0: joules unknown; taken"
    ]


def test_what_is_done_counts_no_more() -> None:
    """Joules are those of the units that are left."""
    snapshot = cluster("exclusive")
    half = make_job("a", "A", 1, progress=make_progress(5, 10))
    (found,) = explained(replace(snapshot, waiting=(half,)))
    assert found.energy_j == pytest.approx(20_000)


def test_of_several_jobs_of_a_kind_the_figure_is_of_one_unit() -> None:
    """They may differ in length; of one alone its own counts."""
    told = [make_job(name, "A", 1, progress=make_progress(0, total)) for name, total in (("a", 4), ("b", 8))]
    book = make_book(make_solo("A"))
    both = replace(cluster("exclusive", free=0), waiting=tuple(told), profiles=book)
    both = replace(both, nodes=cluster("exclusive", "A", free=0).nodes)
    assert "GPUs of its own: 4.0 kJ a unit; " in " ".join(texts(both))
    assert "GPUs of its own: 16.0 kJ; " in " ".join(texts(replace(both, waiting=(told[0],))))


def test_a_job_sees_the_launches_before_it() -> None:
    """The second of two finds the first where it was placed."""
    snapshot = cluster("exclusive", free=2)
    waiting = (make_job("a", "A", 1), make_job("b", "B", 1, run_after_s=1.0))
    snapshot = replace(snapshot, waiting=waiting)
    assert texts(snapshot, "b")[1].startswith("beside A on n-free0: ")
    assert all("beside" not in text for text in texts(snapshot, "a"))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_best_few_are_kept_under_any_policy(policy: str) -> None:
    """However many there are, and each says why; one at most was taken."""
    held = [
        hold_gpus(make_node(f"n-{name}"), make_resident(make_job(f"r-{name}", name)))
        for name in ("J1", "J2", "J3", "J4")
    ]
    more = hold_gpus(
        make_node("pair"),
        *(make_resident(make_job(f"p-{name}", name), LeaseState.CONFIRMED) for name in ("J1", "J3")),
    )
    settings = PoolSettings(policy=policy)
    free = make_node("free")
    found = explained(make_snapshot(*held, more, free, waiting=[make_job("a", "J2")], settings=settings))
    assert len(found) == MOST
    assert [bool(each.lost) for each in found] == [False, *[True] * (MOST - 1)]


@pytest.mark.parametrize(
    ("alternative", "text"),
    [
        (Alternative(Way.ALONE), "GPUs of its own: joules unknown; taken"),
        (
            Alternative(Way.JOIN, ("x", "y"), Placement("n", ("g",)), None, 2.5e6, lost="no"),
            "beside x + y on n: 2.50 MJ, slowdown unknown; not taken: no",
        ),
        (Alternative(Way.CLOSED, lost="held exclusively (1 of 1)"), "other sets: held exclusively (1 of 1)"),
    ],
)
def test_each_reads_as_one_line(alternative: Alternative, text: str) -> None:
    """With units, and the word unknown."""
    assert alternative.text == text
