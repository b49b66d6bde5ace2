"""Airflow pools that are closed for moments, so that others are handed over too (case C03)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from airflow.models.pool import Pool

from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.provider.pool_sizes import (
    CLOSED_HEARTBEATS,
    ROUND_HEARTBEATS,
    SIZING_INTERVAL_S,
    PoolSizes,
)
from airflow_provider_eaco.provider.task_instances import PoolCount, counts_by_pool
from tests.integration.provider.airflow_rows import AirflowRows
from tests.unit.provider.executor.lane_rig import LaneRig

GPUS = 2
WINDOW = 2000
RESIDENTS = 4


class Turns:
    """Two exclusive pools with two GPUs each, sized in every heartbeat at one instant."""

    def __init__(self, rig: LaneRig, rows: AirflowRows, *pools: PoolSettings) -> None:
        self.rows = rows
        self.now_s = 0.0
        settings = replace(rig.services.settings, pools=pools)
        services = replace(rig.services, settings=settings, session=rows.session)
        for pool in pools:
            gpus = tuple(
                Gpu(f"{pool.name}-{index}", pool.name, index, "V100", 16384) for index in range(GPUS)
            )
            services.ledger.save_nodes([Node(pool.name, gpus)])
        rows.run()
        self.sizes = PoolSizes(services, lambda: self.now_s)
        self.sizes.keep(are_held=False)

    def fill(self, pool: str, state: str, count: int, pool_slots: int = 1) -> None:
        """Add tasks to a pool."""
        for number in range(count):
            self.rows.task(f"{pool}-{state}-{number}", pool=pool, state=state, pool_slots=pool_slots)

    def beat(self, *, are_held: bool = True) -> tuple[int | None, int | None]:
        """Run one heartbeat; return the sizes of both pools after it."""
        self.sizes.keep(are_held=are_held)
        return self.rows.slots("busy"), self.rows.slots("idle")


OPEN = WINDOW + GPUS * RESIDENTS


@pytest.fixture
def turns(airflow_rows: AirflowRows, monkeypatch: pytest.MonkeyPatch) -> Turns:
    """A busy pool whose GPUs have tasks and whose queue is long, and an idle one."""
    pools = [PoolSettings(name, mode=PoolMode.EXCLUSIVE, nodes=(name,)) for name in ("busy", "idle")]
    found = Turns(LaneRig(monkeypatch), airflow_rows, *pools)
    found.fill("busy", "running", 2)
    found.fill("busy", "queued", 3)
    found.fill("busy", "scheduled", 4)
    return found


def test_c03_a_busy_pool_is_closed_while_another_has_ready_tasks_and_free_gpus(turns: Turns) -> None:
    """Its size becomes what can hold its GPUs, at once, and afterwards it is what it was."""
    assert turns.beat() == (OPEN, OPEN)
    turns.fill("idle", "scheduled", 4)
    assert turns.beat() == (GPUS, OPEN)
    turns.fill("idle", "queued", 2 * GPUS)
    assert turns.beat() == (OPEN, OPEN)


def test_c03_while_nothing_changes_no_row_is_written(turns: Turns) -> None:
    """Airflow locks these rows in every loop."""
    turns.fill("idle", "scheduled", 4)
    turns.beat()
    with turns.rows.writes_to("slot_pool") as writes:
        turns.beat()
    assert writes == []


def test_c03_a_pool_that_nobodys_turn_helps_keeps_no_other_closed(turns: Turns) -> None:
    """A limit of Airflow's keeps the other's tasks back: the busy pool is open most of the time."""
    turns.fill("idle", "scheduled", 4)
    sizes = [turns.beat()[0] for _ in range(2 * ROUND_HEARTBEATS)]
    one_round = [GPUS] * CLOSED_HEARTBEATS + [OPEN] * (ROUND_HEARTBEATS - CLOSED_HEARTBEATS)
    assert sizes == 2 * one_round


def test_c03_a_size_that_a_user_has_set_stays(turns: Turns) -> None:
    """Nobody closes or opens what is a user's."""
    turns.rows.set(Pool.__table__, {"slots": 7}, pool="busy")
    turns.fill("idle", "scheduled", 4)
    assert turns.beat() == (7, OPEN)
    turns.now_s += SIZING_INTERVAL_S
    assert turns.beat() == (7, OPEN)


def test_c03_with_nobody_held_nothing_is_closed(turns: Turns) -> None:
    """Where no task waits for a GPU nothing stands in another's way."""
    turns.fill("idle", "scheduled", 4)
    turns.beat()
    assert turns.beat(are_held=False) == (OPEN, OPEN)


def test_c03_a_closed_pool_has_room_for_all_that_can_run(turns: Turns) -> None:
    """Tasks that take two slots each may still start on every GPU of it."""
    turns.rows.task("wide", pool="busy", state="queued", pool_slots=2)
    turns.fill("idle", "scheduled", 4)
    assert turns.beat() == (2 * GPUS, OPEN)


def test_c03_one_pool_alone_asks_for_no_counts(
    airflow_rows: AirflowRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is there to give way to."""
    turns = Turns(LaneRig(monkeypatch), airflow_rows, PoolSettings("busy", nodes=("busy",)))
    turns.fill("busy", "running", 9)
    turns.fill("busy", "scheduled", 9)
    assert turns.beat() == (OPEN, None)


def test_c03_nobody_gives_way_to_a_pool_that_only_observes(
    airflow_rows: AirflowRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks wait for no GPU here; it may be the pool of all of Airflow's tasks."""
    pools = (
        PoolSettings("busy", mode=PoolMode.EXCLUSIVE, nodes=("busy",)),
        PoolSettings("idle", mode=PoolMode.OBSERVE, nodes=("idle",)),
    )
    turns = Turns(LaneRig(monkeypatch), airflow_rows, *pools)
    turns.fill("busy", "running", 9)
    turns.fill("idle", "scheduled", 4)
    assert turns.beat() == (OPEN, OPEN)


def test_tasks_are_counted_by_pool_and_by_whether_they_were_handed_over(turns: Turns) -> None:
    """Ended tasks and other pools do not count."""
    turns.rows.task("over", pool="busy", state="success")
    turns.rows.task("elsewhere", pool="other", state="queued")
    turns.rows.task("wide", pool="idle", state="running", pool_slots=3)
    with turns.rows.session() as session:
        found = counts_by_pool(session, ["busy", "idle", "none"])
    assert found == {"busy": PoolCount(4, 5, 1), "idle": PoolCount(0, 1, 3)}
