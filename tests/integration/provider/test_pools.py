"""The Airflow pools that stand for GPU pools: made, sized, and left to the user who edits them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from airflow.models.pool import Pool

from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.provider.gpu_lane import INVENTORY_INTERVAL_S, GpuLane
from airflow_provider_eaco.provider.pools import pool_states, reset_slots, write_slots, written_slots
from tests.integration.provider.airflow_rows import AirflowRows
from tests.unit.provider.executor.lane_rig import LaneRig

# The rig replaces it, since it has no database of Airflow's; here is one.
SIZE_POOLS = GpuLane.size_pools
# Hold window, and two GPUs with four residents each.
WANTED = 2000 + 2 * 4
TABLE = Pool.__table__


class Sizing:
    """A GPU lane that sizes its pools, once an interval."""

    def __init__(self, rig: LaneRig, rows: AirflowRows) -> None:
        self.rows = rows
        self._now_s = 0.0
        self._rig = rig
        self._services = replace(rig.services, session=rows.session)
        self.use(PoolSettings("eaco"))

    def use(self, *pools: PoolSettings) -> None:
        """Go on as after a restart with these pools."""
        settings = replace(self._services.settings, pools=pools)
        self.services = replace(self._services, settings=settings)
        self._lane = GpuLane(self._rig.host, self.services, self._rig.plain, lambda: self._now_s)
        self._lane.report_nodes()

    def size(self) -> list[str]:
        """Size the pools at the next time; return the statements that changed them."""
        self._now_s += INVENTORY_INTERVAL_S
        with self.rows.writes_to("slot_pool") as writes:
            SIZE_POOLS(self._lane)
        return writes


@pytest.fixture
def sizing(airflow_rows: AirflowRows, monkeypatch: pytest.MonkeyPatch) -> Sizing:
    return Sizing(LaneRig(monkeypatch), airflow_rows)


def test_the_pool_is_made_and_then_written_only_on_change(sizing: Sizing) -> None:
    """A pool appears with the wanted size; while nothing changes its row is not touched again."""
    assert len(sizing.size()) == 1
    assert sizing.rows.slots("eaco") == WANTED
    assert sizing.size() == []
    gpus = tuple(Gpu(f"GPU-n2-{index}", "n2", index, "V100", 16384) for index in range(4))
    sizing.services.ledger.save_nodes([Node("n2", gpus)])
    assert len(sizing.size()) == 1
    assert sizing.rows.slots("eaco") == WANTED + 4 * 4


def test_a_pool_that_is_off_exists_and_bounds_nobody(sizing: Sizing) -> None:
    """Tasks are routed to it, and Airflow runs none of a pool that is missing; one that is there stays."""
    sizing.use(PoolSettings("idle", mode=PoolMode.OFF))
    sizing.size()
    assert sizing.rows.slots("idle") == -1
    assert sizing.size() == []
    sizing.rows.set(TABLE, {"slots": 3}, pool="idle")
    assert sizing.size() == []
    assert sizing.rows.slots("idle") == 3


def test_a_pool_that_was_off_is_sized_once_it_is_on(sizing: Sizing) -> None:
    """No limit was our own number: it is replaced like any other of ours."""
    sizing.use(PoolSettings("idle", mode=PoolMode.OFF))
    sizing.size()
    sizing.use(PoolSettings("idle"))
    sizing.size()
    assert sizing.rows.slots("idle") == WANTED


def test_a_users_size_wins_until_it_is_reset(sizing: Sizing) -> None:
    """Slots that a user set stay, whatever the inventory does; `pools reset` gives the pool back."""
    sizing.size()
    sizing.rows.set(TABLE, {"slots": 3}, pool="eaco")
    assert sizing.size() == []
    sizing.services.ledger.save_nodes([Node("n2", (Gpu("GPU-n2", "n2", 0, "V100", 16384),))])
    assert sizing.size() == []
    assert sizing.rows.slots("eaco") == 3
    with sizing.rows.session() as session:
        assert reset_slots(session, "eaco")
    assert len(sizing.size()) == 1
    assert sizing.rows.slots("eaco") == WANTED + 4


def test_a_pool_that_a_user_made_is_the_users(sizing: Sizing) -> None:
    """A pool that was there before us keeps its size and its description."""
    sizing.rows.pool("eaco", 5)
    assert sizing.size() == []
    assert sizing.rows.slots("eaco") == 5


def test_a_pool_that_a_user_deleted_comes_back(sizing: Sizing) -> None:
    """Without its Airflow pool no task would reach a GPU pool: it is made anew."""
    sizing.size()
    with sizing.rows.engine.begin() as connection:
        connection.execute(TABLE.delete())
    assert len(sizing.size()) == 1
    assert sizing.rows.slots("eaco") == WANTED


def test_airflow_pools_as_a_policy_sees_them(airflow_rows: AirflowRows) -> None:
    """Every Airflow pool is known with its slots; -1 is no limit."""
    airflow_rows.pool("some", 3)
    airflow_rows.pool("unlimited", -1)
    with airflow_rows.session() as session:
        (state,) = pool_states(session, [PoolSettings("eaco")])
    assert {name: pool.slots for name, pool in state.airflow_pools.items()} == {"some": 3, "unlimited": None}


def test_what_was_written_last_is_known(airflow_rows: AirflowRows) -> None:
    """The size that we gave a pool is told apart from one that a user gave it."""
    airflow_rows.pool("user", 3)
    with airflow_rows.session() as session:
        write_slots(session, {"ours": 7})
        assert written_slots(session, ["user", "ours", "none"]) == {"user": (3, None), "ours": (7, 7)}
        assert not reset_slots(session, "none")
    airflow_rows.set(TABLE, {"slots": 9}, pool="ours")
    with airflow_rows.session() as session:
        assert written_slots(session, ["ours"]) == {"ours": (9, 7)}
