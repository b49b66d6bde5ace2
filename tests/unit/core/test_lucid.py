"""The scorer like Lucid's: who may be paired, and with whom."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.policy.lucid import share_score
from tests.builders import hold_gpus, make_book, make_job, make_node, make_resident, make_snapshot, make_solo
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import launched

LUCID = PoolSettings(policy="lucid")
BOOK = make_book(
    make_solo("tiny", utilisation_pct=10.0),
    make_solo("medium", utilisation_pct=40.0),
    make_solo("jumbo", utilisation_pct=90.0),
    make_solo("unknown", utilisation_pct=None),
)


@pytest.mark.parametrize(
    ("busy_pct", "score"), [(0.0, 0), (15.0, 0), (15.1, 1), (42.5, 1), (43.0, 2), (100.0, 2)]
)
def test_utilisation_decides_the_score(busy_pct: float, score: int) -> None:
    """Tiny, medium and jumbo, with their edges."""
    assert share_score(busy_pct) == score


@pytest.mark.parametrize(
    ("newcomer", "resident", "joins"),
    [
        ("tiny", "tiny", True),
        ("tiny", "jumbo", True),
        ("jumbo", "tiny", True),
        ("medium", "medium", True),
        ("medium", "jumbo", False),
        ("jumbo", "jumbo", False),
        ("unknown", "tiny", False),
        ("tiny", "unknown", False),
    ],
)
def test_scores_of_a_pair_sum_to_two_at_most(newcomer: str, resident: str, joins: bool) -> None:
    """A job joins only a partner with whom the scores allow it; unknown ones are left alone."""
    node = hold_gpus(make_node(gpus=1, model="T4"), make_resident(make_job("r", resident, 1)))
    waiting = [make_job("new", newcomer, 1, max_stretch=None)]
    plan = run_checked(make_snapshot(node, waiting=waiting, profiles=BOOK, settings=LUCID))
    assert ("new" in launched(plan)) is joins


def test_free_gpus_come_first_and_the_gentlest_partner_next() -> None:
    """Nobody is joined while a GPU is free; then the pair with the least scores and utilisation is made."""
    jumbo = hold_gpus(make_node("node-a", gpus=1, model="T4"), make_resident(make_job("j", "jumbo", 1)))
    medium = hold_gpus(make_node("node-b", gpus=1, model="T4"), make_resident(make_job("m", "medium", 1)))
    waiting = [make_job("new", "tiny", 1)]
    with_room = make_snapshot(
        jumbo, medium, make_node("node-c", gpus=1, model="T4"), waiting=waiting, profiles=BOOK, settings=LUCID
    )
    assert launched(run_checked(with_room))["new"].placement.node == "node-c"
    full = make_snapshot(jumbo, medium, waiting=waiting, profiles=BOOK, settings=LUCID)
    assert launched(run_checked(full))["new"].co_residents == ("m",)
