"""What jobs have used since the day began: recorded parts, and the draw of those who run on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from airflow_provider_eaco.core.model.energy_budget import DAY_S, EnergyBudget, EnergyUsed, day_began_s
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.ports import UsedEnergy
from airflow_provider_eaco.engine.budgets import DayEnergy
from tests.builders import NOW_S, hold_gpus, make_book, make_job, make_node, make_resident, make_snapshot
from tests.unit.engine.rig import Rig, unlimited

SINCE_S = day_began_s(NOW_S)
SETTINGS = PoolSettings(energy_budget=EnergyBudget(kwh_per_day=1.0))


@dataclass
class Records:
    """Parts that a test names, and how often they were read."""

    parts: list[UsedEnergy] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)

    def used_since(self, since_s: float) -> Sequence[UsedEnergy]:
        self.asked.append(since_s)
        return [part for part in self.parts if part.end_s > since_s]


def used(snapshot: ClusterSnapshot, *parts: UsedEnergy) -> EnergyUsed:
    found = DayEnergy(Records(list(parts))).told(snapshot).pool.energy_used
    assert found is not None
    return found


def part(energy_j: float | None, begin_s: float, end_s: float, **changes: object) -> UsedEnergy:
    plain = UsedEnergy("a", "node-a", begin_s, end_s, energy_j)
    return replace(plain, **changes)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("parts", "energy_j", "partial"),
    [
        pytest.param([], 0.0, False, id="nobody has run"),
        pytest.param([part(100.0, SINCE_S, SINCE_S + 9)], 100.0, False, id="today"),
        pytest.param([part(100.0, SINCE_S - 30, SINCE_S + 10)], 25.0, False, id="over midnight"),
        pytest.param([part(100.0, SINCE_S + 5, SINCE_S + 5)], 100.0, False, id="an instant"),
        pytest.param([part(100.0, SINCE_S, SINCE_S + 9, node="other")], 0.0, False, id="another pool's node"),
        pytest.param([part(None, SINCE_S, SINCE_S + 9)], 0.0, True, id="not measured"),
        pytest.param([part(7.0, SINCE_S, SINCE_S + 9, partial=True)], 7.0, True, id="a part is missing"),
    ],
)
def test_recorded_parts_count_as_far_as_they_lie_in_the_day(
    parts: list[UsedEnergy], energy_j: float, partial: bool
) -> None:
    """Energy is spread evenly over its time; what was not measured makes the sum a lower bound."""
    found = used(make_snapshot(make_node(), settings=SETTINGS), *parts)
    assert found == EnergyUsed(SINCE_S, pytest.approx(energy_j), partial)


def test_who_runs_counts_with_its_draw_from_where_its_record_ends() -> None:
    """J1 alone draws 712 W; with a record up to ten minutes ago only these ten minutes are added."""
    held = hold_gpus(make_node(), make_resident(make_job("a", "J1"), granted_s=NOW_S - 3600))
    snapshot = make_snapshot(held, settings=SETTINGS)
    assert used(snapshot).energy_j == pytest.approx(712 * 3600)
    recorded = part(1000.0, NOW_S - 3600, NOW_S - 600)
    assert used(snapshot, recorded).energy_j == pytest.approx(1000 + 712 * 600)


def test_who_has_run_since_yesterday_counts_from_midnight() -> None:
    """What was used before is of the day before."""
    held = hold_gpus(make_node(), make_resident(make_job("a", "J1"), granted_s=SINCE_S - 9999))
    found = used(make_snapshot(held, settings=SETTINGS))
    assert found.energy_j == pytest.approx(712 * (NOW_S - SINCE_S))


def test_a_draw_that_nobody_knows_makes_the_sum_a_lower_bound() -> None:
    """Neither 0 nor guessed; with a reading it is known."""
    resident = make_resident(make_job("a", "x", 1), granted_s=NOW_S - 100)
    held = hold_gpus(make_node(gpus=1, model="M"), resident)
    snapshot = make_snapshot(held, settings=SETTINGS, profiles=make_book())
    assert used(snapshot) == EnergyUsed(SINCE_S, 0.0, partial=True)
    reading = GpuReading(held.node.gpus[0].uuid, NOW_S, power_w=200.0)
    metered = make_snapshot(held, settings=SETTINGS, profiles=make_book(), readings=[reading])
    assert used(metered) == EnergyUsed(SINCE_S, pytest.approx(200.0 * 100))


def test_records_are_read_now_and_then_and_at_once_on_a_new_day() -> None:
    """Not in every heartbeat."""
    records = Records()
    day = DayEnergy(records, read_every_s=30.0)
    snapshot = make_snapshot(make_node(), settings=SETTINGS)
    for now_s in (NOW_S, NOW_S + 29, NOW_S + 31, SINCE_S + DAY_S - 1, SINCE_S + DAY_S):
        day.told(replace(snapshot, now_s=now_s))
    assert records.asked == [SINCE_S] * 3 + [SINCE_S + DAY_S]


@pytest.mark.parametrize("budget", [None, EnergyBudget(power_w=1000.0)])
def test_a_pool_without_a_budget_of_energy_reads_nothing(budget: EnergyBudget | None) -> None:
    """It costs nothing."""
    records = Records()
    snapshot = make_snapshot(make_node(), settings=PoolSettings(energy_budget=budget))
    assert DayEnergy(records).told(snapshot) is snapshot
    assert records.asked == []


def test_the_loop_holds_who_waits_once_the_day_is_used_up() -> None:
    """From the records through the rule to the decision, live as in the simulator."""
    rig = Rig(pools=unlimited(SETTINGS))
    records = Records([UsedEnergy("old", "n1", NOW_S - 60, NOW_S - 30, 4e6)])
    loop = rig.make_loop("planner", energy_use=records)
    rig.add(make_job("a", "A", 1))
    report = loop.run_once()
    assert [item.decision.reason.code for item in report.decided if item.decision.reason] == [
        "over_energy_budget"
    ]
    assert report.look_again_s == SINCE_S + DAY_S
    rig.clock.advance(SINCE_S + DAY_S - NOW_S)
    assert [lease.job_id for lease in loop.run_once().granted] == ["a"]
