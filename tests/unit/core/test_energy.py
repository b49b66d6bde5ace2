"""Predictions of sets, stretch and joules."""

from __future__ import annotations

import math

import pytest

from airflow_provider_eaco.core.energy.interference import predict
from airflow_provider_eaco.core.energy.objective import join_energy
from airflow_provider_eaco.core.energy.outlook import (
    predicted_stretch,
    remaining_solo_s,
    slowdown_within_deadline,
    slowdown_within_stretch,
)
from airflow_provider_eaco.core.energy.power_model import largest_joint_power_w
from airflow_provider_eaco.core.model.profile import PowerScope, ProfileBook
from airflow_provider_eaco.data import built_in_book
from tests.builders import make_book, make_pair, make_progress, make_solo


def test_a_measured_set_answers_with_its_own_numbers() -> None:
    """A measured set's slowdowns and power are those of the table, whatever order its members come in."""
    found = predict(["J3", "J1"], "V100", 8, built_in_book(), 0.05)
    assert found is not None
    assert found.measured
    assert (found.power_w, found.utilisation_pct, found.error) == (1390, 40.25, 0.0)
    assert found.slowdowns["J1"] == pytest.approx(36.63 / ((34.76 + 36.01) / 2))
    assert found == predict(["J1", "J3"], "V100", 8, built_in_book(), 0.05)


ESTIMATES = {
    # families: slowdown before the error, sum of utilisation, power of the node
    ("J1", "J1"): (1.035, 9.44, max(712, 392 + 158.5 * math.sqrt(9.44))),
    ("J3", "J4"): (1.035, 84.62, 392 + 158.5 * math.sqrt(84.62)),
    ("J4", "J4", "J4"): (1.083 * 1.4403, 144.03, 392 + 1585),
    ("J1", "J1", "J1", "J1"): (1.245, 18.88, 392 + 158.5 * math.sqrt(18.88)),
}


@pytest.mark.parametrize("families", ESTIMATES, ids="+".join)
def test_other_v100_sets_are_estimated_by_the_stated_rule(families: tuple[str, ...]) -> None:
    """An unmeasured set of V100 nodes is slowed by its size and by full GPUs, the error on top."""
    slowdown, busy, power_w = ESTIMATES[families]
    found = predict(families, "V100", 8, built_in_book(), 0.05)
    assert found is not None
    assert not found.measured
    assert found.slowdowns == dict.fromkeys(families, pytest.approx(slowdown * 1.05))
    assert found.utilisation_pct == pytest.approx(busy)
    assert found.power_w == pytest.approx(power_w)
    assert found.error == 0.05


def test_sets_beyond_four_are_not_guessed() -> None:
    """Nothing was measured beyond four V100 residents, so nothing is predicted."""
    assert predict(["J1"] * 5, "V100", 8, built_in_book(), 0.05) is None


LINE = {
    # utilisation of the members: relative speed of each
    (20.0, 30.0): 1.0,
    (60.0, 45.0): 1 - 0.0031 * 20,
    (100.0, 100.0): 1 - 0.0031 * 115,
    (50.0, 50.0, 50.0): 100 / 150,
}


@pytest.mark.parametrize("busy", LINE, ids=str)
def test_other_models_follow_the_measured_line(busy: tuple[float, ...]) -> None:
    """Other GPU models slow down along the line measured for pairs, never faster than full GPUs allow."""
    solos = [make_solo(f"F{n}", utilisation_pct=u) for n, u in enumerate(busy)]
    found = predict([solo.family for solo in solos], "T4", 1, make_book(*solos), 0.05)
    assert found is not None
    assert found.slowdowns["F0"] == pytest.approx(1.068 / LINE[busy])
    assert found.error == 0.068
    assert found.power_w == pytest.approx(40 * len(busy) - 10 * (len(busy) - 1))


UNKNOWN: dict[str, ProfileBook] = {
    "no profile": make_book(make_solo("A")),
    "stale": make_book(make_solo("A"), make_solo("B", stale=True)),
    "no utilisation": make_book(make_solo("A"), make_solo("B", utilisation_pct=None)),
    "no unit time": make_book(make_solo("A"), make_solo("B", unit_s=None)),
    "other GPU model": make_book(make_solo("A"), make_solo("B", gpu_model="H100")),
    "other GPU count": make_book(make_solo("A"), make_solo("B", gpu_count=2)),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_nothing_is_predicted_from_an_unknown_member(case: str) -> None:
    """A member without a fresh profile on exactly these GPUs makes the set unknown (C60, C61)."""
    assert predict(["A", "B"], "T4", 1, UNKNOWN[case], 0.05) is None


POWERS = {
    "member unknown": (make_solo("A", power_w=None), make_solo("B")),
    "node and board": (make_solo("A", scope=PowerScope.BOARD), make_solo("B")),
}


@pytest.mark.parametrize("case", POWERS)
def test_power_is_unknown_rather_than_mixed(case: str) -> None:
    """An estimate gives no power when a member's is unknown or covers something else."""
    found = predict(["A", "B"], "T4", 1, make_book(*POWERS[case]), 0.05)
    assert found is not None
    assert found.power_w is None


def test_a_measured_power_of_another_scope_is_not_compared() -> None:
    """A measured set whose power covers something else than its members' keeps slowdowns, not power."""
    pair = make_pair({"A": 1.1, "B": 1.2}, scope=PowerScope.BOARD, utilisation_pct=None, undone=2)
    found = predict(["A", "B"], "T4", 1, make_book(make_solo("A"), make_solo("B"), pair), 0.05)
    assert found is not None
    assert (found.power_w, found.utilisation_pct, found.undone) == (None, 40.0, 2)
    alone = predict(["A", "B"], "T4", 1, make_book(pair), 0.05)
    assert alone is not None
    assert (alone.power_w, alone.utilisation_pct) == (None, None)


def test_a_stale_measured_set_is_estimated_instead() -> None:
    """A stale co-allocation profile counts as absent."""
    pair = make_pair({"A": 2.0, "B": 2.0}, stale=True)
    found = predict(["A", "B"], "T4", 1, make_book(make_solo("A"), make_solo("B"), pair), 0.05)
    assert found is not None
    assert not found.measured


def test_mixed_scopes_on_v100_use_the_general_line() -> None:
    """The V100 node rule needs node figures of every member."""
    solos = [
        make_solo("A", "V100", scope=PowerScope.BOARD),
        make_solo("B", "V100", power_w=None, scope=PowerScope.BOARD),
    ]
    found = predict(["A", "B"], "V100", 1, make_book(*solos), 0.05)
    assert found is not None
    assert found.error == 0.068
    no_power = make_book(make_solo("A", "V100", power_w=None), make_solo("B", "V100"))
    unknown = predict(["A", "B"], "V100", 1, no_power, 0.05)
    assert unknown is not None
    assert (unknown.power_w, unknown.error) == (None, 0.05)


def test_joint_power_counts_idle_once_and_is_unknown_for_unknown_models() -> None:
    """Boards draw their idle power once for all; a model without an idle figure has no bound."""
    assert largest_joint_power_w([60, 50], "H100", 2) == 60
    assert largest_joint_power_w([600, 500], "H100", 2) == 600 + 500 - 144
    assert largest_joint_power_w([60, 50], "Unheard-of", 1) is None


def test_stretch_counts_the_whole_run_with_what_is_done() -> None:
    """Predicted stretch is (done time + rest at the slowdown) / (all units alone)."""
    done = make_progress(done=40, total=100, unit_s=100.0)
    assert predicted_stretch(done, 100, 100.0, 1.5) == pytest.approx((4000 + 60 * 150) / 10_000)
    assert predicted_stretch(done, None, 100.0, 1.5) == 1.5
    assert predicted_stretch(done, 100, None, 1.5) == 1.5


def test_the_bearable_slowdown_is_the_stretch_solved_for_it() -> None:
    """At the bearable slowdown the predicted stretch equals the limit."""
    done = make_progress(done=40, total=100, unit_s=103.0)
    bears = slowdown_within_stretch(done, 100, 100.0, 1.1)
    assert predicted_stretch(done, 100, 100.0, bears) == pytest.approx(1.1)
    assert slowdown_within_stretch(done, 100, 100.0, None) == math.inf
    assert slowdown_within_stretch(done, None, 100.0, 1.1) == 1.1
    assert slowdown_within_stretch(make_progress(done=5, total=5), 5, 100.0, 1.1) == math.inf


def test_deadlines_are_wall_time_and_work_is_device_time() -> None:
    """A node that runs ten times faster leaves ten times the device time."""
    assert slowdown_within_deadline(100.0, 1200.0, 1000.0, 1.0) == 2.0
    assert slowdown_within_deadline(100.0, 1200.0, 1000.0, 10.0) == 20.0
    assert slowdown_within_deadline(0.0, 1200.0, 1300.0, 1.0) == math.inf
    assert slowdown_within_deadline(None, 1200.0, 1000.0, 1.0) is None
    assert slowdown_within_deadline(None, None, 1000.0, 1.0) == math.inf


def test_remaining_time_needs_a_total_and_a_pace() -> None:
    """Remaining time is units left x unit time, unknown without either; the run's own total counts first."""
    solo = make_solo(units_total=50)
    assert remaining_solo_s(make_progress(done=10), solo) == 4000
    assert remaining_solo_s(make_progress(done=10, total=20), solo) == 1000
    assert remaining_solo_s(make_progress(done=10, total=20, solo_unit_s=7.0), None) == 70
    assert remaining_solo_s(make_progress(done=10), None) is None
    assert remaining_solo_s(make_progress(total=20), make_solo(unit_s=None)) is None


def test_joining_a_set_is_charged_what_it_adds() -> None:
    """J1 beside J3 adds 1390 W less what J3 alone would have drawn for the same work."""
    book = built_in_book()
    solo = book.solo_of("J1", "V100", 8)
    before, after = (predict(families, "V100", 8, book, 0.05) for families in (["J3"], ["J1", "J3"]))
    assert solo is not None
    assert before is not None
    assert after is not None
    energy = join_energy(solo, ("J3",), before, after, units=2)
    assert energy is not None
    slow = after.slowdowns["J1"]
    assert energy.alone_j == pytest.approx(712 * 2 * 1390.4)
    assert energy.shared_j == pytest.approx((1390 - 1330 / slow) * slow * 2 * 1390.4)
    assert energy.saves


def test_joules_of_an_unknown_power_are_unknown() -> None:
    """Energy is never guessed."""
    book = make_book(make_solo("A", power_w=None), make_solo("B"), make_pair({"A": 1.0, "B": 1.0}))
    before, after = (predict(families, "T4", 1, book, 0.05) for families in (["B"], ["A", "B"]))
    assert before is not None
    assert after is not None
    assert join_energy(make_solo("A", power_w=None), ("B",), before, after) is None
