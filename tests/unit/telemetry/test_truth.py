"""What families really do: configured rows, the measured table, the rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.telemetry.gpu_models import GPU_MODELS
from airflow_provider_eaco.telemetry.truth import TruthTable, parse_truth, rule_rate

MEASURED = TruthTable(built_in_book())


def table(*rows: dict[str, Any]) -> TruthTable:
    return TruthTable(built_in_book(), parse_truth(rows))


@pytest.mark.parametrize(
    ("families", "rate", "power_w"),
    [
        # Worked by hand from the rule: sum U = 47.78, 73.22, 72.02, 9.44, 96.02 (twice J4) and 169.24 %.
        (("J2", "J3"), 1 / 1.035, 392 + 158.5 * math.sqrt(47.78)),
        (("J3", "J3"), 1 / 1.035, 392 + 158.5 * math.sqrt(73.22)),
        (("J1", "J1"), 1 / 1.035, 392 + 158.5 * math.sqrt(9.44)),
        (("J4", "J4"), 1 / 1.035, 392 + 158.5 * math.sqrt(96.02)),
        (("J3", "J3", "J4"), 1 / 1.083 * 100 / 121.23, 392 + 158.5 * 10),
        (("J3", "J3", "J4", "J4"), 1 / 1.245 * 100 / 169.24, 392 + 158.5 * 10),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_set_that_was_never_measured_follows_the_rule(
    families: tuple[str, ...], rate: float, power_w: float
) -> None:
    """Pace by the number of members and the sum of utilisations, draw by the fitted curve."""
    truth = MEASURED.of(families, "V100", 8)
    assert [member.rate for member in truth.members] == [pytest.approx(rate)] * len(families)
    assert truth.power_w == pytest.approx(power_w)


def test_a_set_draws_no_less_than_its_hungriest_member() -> None:
    """The curve is below J4's own 1533 W for J4 beside next to nothing; then J4's draw stands."""
    light = {"families": ["light"], "utilisation_pct": 0.001}
    truth = table(light).of(("J4", "light"), "V100", 8)
    assert truth.power_w == pytest.approx(1533)


@given(members=st.integers(1, 16), sum_pct=st.floats(0, 1600))
def test_the_rule_never_speeds_up(members: int, sum_pct: float) -> None:
    """Nobody is faster in company than alone, and more company is never faster."""
    rate = rule_rate(members, sum_pct)
    assert 0 < rate <= 1
    assert rule_rate(members + 1, sum_pct) <= rate


def test_the_order_of_families_is_kept() -> None:
    """Members come back in the order in which they were asked for."""
    truth = MEASURED.of(("J4", "J1"), "V100", 8)
    assert [round(member.utilisation_pct, 2) for member in truth.members] == [48.01, 4.72]


def test_half_the_gpus_draw_half() -> None:
    """On fewer GPUs than were measured a family keeps its pace and draws in proportion (an assumption)."""
    truth = MEASURED.of(("J3",), "V100", 4)
    assert truth.power_w == pytest.approx(1330 / 2)
    assert truth.members[0].unit_s == pytest.approx(36.01 * 3600 / 90)


def test_other_models_scale_what_is_above_idle() -> None:
    """A H100 draws its own idle power and, above it, 700/300 of what a V100 draws (an assumption)."""
    truth = MEASURED.of(("J3",), "H100", 8)
    assert truth.power_w == pytest.approx(8 * (72 + 19) + (1330 - 392) * 700 / 300)


def test_every_model_idles_below_its_limit() -> None:
    """A GPU of every model draws more at work than idle, and less than its board and host together."""
    for model in GPU_MODELS.values():
        full_w = MEASURED.of(("J3", "J4", "J4"), model.name, 1).power_w
        assert model.idle_w < full_w < model.board_limit_w + 19


def test_nothing_known_is_given_stated_defaults() -> None:
    """A family that nobody has described runs: 600 s a unit, 40 %, draw by the curve, memory unknown."""
    (member,) = MEASURED.of(("mine",), "V100", 8).members
    assert (member.unit_s, member.utilisation_pct, member.memory_mib, member.rate) == (600, 40, None, 1)
    assert MEASURED.of(("mine",), "V100", 8).power_w == pytest.approx(392 + 158.5 * math.sqrt(40))


def test_a_row_comes_before_the_measured_table() -> None:
    """Each value that a row names is used, each that it leaves out is the table's or the rule's."""
    truth = table(
        {"families": ["J1"], "unit_s": 5, "memory_mib": 900},
        {"families": ["J4", "J1"], "slowdowns": [1.5, 3.0]},
    )
    (alone,) = truth.of(("J1",), "V100", 8).members
    assert (alone.unit_s, alone.memory_mib, alone.utilisation_pct) == (5, 900, 4.72)
    pair = truth.of(("J1", "J4"), "V100", 8)
    assert [member.rate for member in pair.members] == [1 / 3.0, 1 / 1.5]
    assert pair.power_w == 1506


def test_a_row_of_another_placement_does_not_count() -> None:
    """A row that names a model and a number of GPUs is about those alone."""
    row = {"families": ["mine"], "gpu_model": "A100-40", "gpu_count": 2, "power_w": 700}
    assert table(row).of(("mine",), "A100-40", 2).power_w == 700
    assert table(row).of(("mine",), "A100-40", 4).power_w != 700
    assert table(row).of(("mine",), "V100", 2).power_w != 700


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({}, "families"),
        ({"families": "J1"}, "families"),
        ({"families": []}, "families"),
        ({"families": ["a"], "power": 1}, "unknown power; allowed are"),
        ({"families": ["a"], "gpu_model": "V1000"}, "must be one of V100"),
        ({"families": ["a"], "gpu_count": 0}, "gpu_count"),
        ({"families": ["a"], "memory_mib": 1.5}, "memory_mib"),
        ({"families": ["a"], "unit_s": 0}, "unit_s"),
        ({"families": ["a"], "unit_s": float("nan")}, "unit_s"),
        ({"families": ["a"], "unit_s": float("inf")}, "unit_s"),
        ({"families": ["a"], "unit_s": True}, "unit_s"),
        ({"families": ["a"], "utilisation_pct": 101}, "at most 100"),
        ({"families": ["a"], "power_w": 100}, "power_w needs gpu_model and gpu_count"),
        ({"families": ["a", "b"], "unit_s": 10}, "unit_s belongs"),
        ({"families": ["a"], "slowdowns": [1]}, "slowdowns"),
        ({"families": ["a", "b"], "slowdowns": [1]}, "slowdowns"),
        ({"families": ["a", "b"], "slowdowns": [1, -1]}, "slowdowns"),
        ({"families": ["a", "a"], "slowdowns": [1, 2]}, "two values"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_row_is_named(row: dict[str, Any], problem: str) -> None:
    """A row that cannot be used is refused with its number and what is allowed."""
    with pytest.raises(InvalidSettingError, match=r"simulated_truth: row 2: .*" + problem):
        parse_truth([{"families": ["fine"]}, row])


def test_without_a_book_the_rule_is_enough() -> None:
    """A table of nothing answers for any set."""
    truth = TruthTable(ProfileBook()).of(("a", "b", "c", "d", "e"), "T4", 1)
    assert len(truth.members) == 5
    assert truth.power_w > GPU_MODELS["T4"].idle_w
