"""The pool manager: inventory, size of the Airflow pool, numbers that add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.gpu import GpuHealth, GpuReading, Node
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.engine.pool_manager import (
    Inventory,
    count_pools,
    forget_silent_nodes,
    slots_to_write,
    wanted_slots,
)
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from tests.builders import NOW_S, make_job, make_node
from tests.contract.parts import ManualClock
from tests.unit.engine.rig import Rig


class CountingLedger(MemoryLedger):
    """A ledger that counts how often nodes are written."""

    saves = 0

    def save_nodes(self, nodes: Sequence[Node]) -> None:
        self.saves += 1
        super().save_nodes(nodes)


class Meter:
    """A meter that sees what the test says, or fails."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = list(nodes)
        self.error: Exception | None = None

    def inventory(self) -> Sequence[Node]:
        if self.error is not None:
            raise self.error
        return self.nodes

    def read(self) -> Sequence[GpuReading]:
        return []

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        return None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S)


@pytest.fixture
def ledger(clock: ManualClock) -> CountingLedger:
    return CountingLedger(clock)


def test_nodes_are_written_on_change_and_at_heartbeats(ledger: CountingLedger) -> None:
    """An unchanged inventory is written once a heartbeat interval, a changed one at once."""
    meter = Meter(make_node("n1", 2).node)
    inventory = Inventory(ledger, [meter], heartbeat_s=30)
    written = [inventory.reconcile(NOW_S + seconds) for seconds in (0, 1, 29, 30, 31)]
    assert written == [True, False, False, True, False]
    meter.nodes = [make_node("n1", 3).node]
    assert inventory.reconcile(NOW_S + 32)
    assert ledger.saves == 3
    assert len(ledger.view().nodes[0].gpus) == 3


def test_the_instant_of_the_look_is_no_change(ledger: CountingLedger) -> None:
    """A meter that stamps its nodes with the present instant does not cause a write at each heartbeat."""
    meter = Meter(replace(make_node("n1").node, last_report_s=1.0))
    inventory = Inventory(ledger, [meter], heartbeat_s=30)
    assert inventory.reconcile(NOW_S)
    meter.nodes = [replace(make_node("n1").node, last_report_s=2.0)]
    assert not inventory.reconcile(NOW_S + 1)


def test_a_node_that_is_gone_is_forgotten(ledger: CountingLedger) -> None:
    """What no meter sees any more leaves the ledger; the others stay."""
    meter, other = Meter(make_node("n1").node), Meter(make_node("n2").node)
    inventory = Inventory(ledger, [meter, other])
    inventory.reconcile(NOW_S)
    meter.nodes = []
    assert inventory.reconcile(NOW_S + 1)
    assert [node.name for node in ledger.view().nodes] == ["n2"]


def test_a_machine_without_gpus_writes_nothing(ledger: CountingLedger) -> None:
    """C66: no meter, or one that sees nothing, is no error and no row."""
    assert not Inventory(ledger, []).reconcile(NOW_S)
    assert not Inventory(ledger, [Meter()]).reconcile(NOW_S)
    assert ledger.view().nodes == ()


def test_c49_a_failing_meter_keeps_its_nodes_with_unknown_health(ledger: CountingLedger) -> None:
    """While the driver is gone nothing new starts there; when it is back, so is the health."""
    meter = Meter(make_node("n1", 2).node)
    inventory = Inventory(ledger, [meter])
    inventory.reconcile(NOW_S)
    meter.error = OSError("driver/library version mismatch")
    assert inventory.reconcile(NOW_S + 1)
    assert {gpu.health for gpu in ledger.view().nodes[0].gpus} == {GpuHealth.UNKNOWN}
    meter.error = None
    assert inventory.reconcile(NOW_S + 2)
    assert {gpu.health for gpu in ledger.view().nodes[0].gpus} == {GpuHealth.HEALTHY}


@pytest.mark.parametrize(
    "second", [make_node("n1", 1).node, replace(make_node("n1", 1).node, name="n2")], ids=["name", "gpu"]
)
def test_two_meters_with_one_name_are_refused(ledger: CountingLedger, second: Node) -> None:
    """A node or a GPU that is reported twice would be granted twice: it is an error with its name."""
    with pytest.raises(InvalidSettingError, match="n1"):
        Inventory(ledger, [Meter(make_node("n1", 1).node), Meter(second)]).reconcile(NOW_S)


def test_silent_nodes_are_forgotten(ledger: CountingLedger, clock: ManualClock) -> None:
    """A machine that never came back leaves the inventory after a while."""
    ledger.save_nodes([make_node("old").node])
    clock.advance(3600)
    ledger.save_nodes([make_node("new").node])
    assert forget_silent_nodes(ledger, ledger.view(), 3600) == ()
    clock.advance(1)
    assert forget_silent_nodes(ledger, ledger.view(), 3600) == ("old",)
    assert [node.name for node in ledger.view().nodes] == ["new"]


def test_the_airflow_pool_has_room_for_held_and_running_tasks(ledger: CountingLedger) -> None:
    """Held tasks take slots of the Airflow pool, and so does every task that runs on the pool's GPUs."""
    ledger.save_nodes([make_node("n1", 8).node, make_node("other", 8).node])
    pool = PoolState(PoolSettings(nodes=("n*",), max_residents=4))
    assert wanted_slots(ledger.view(), pool, hold_window=2000) == 2032


@pytest.mark.parametrize(
    ("wanted", "present", "last_written", "write"),
    [
        pytest.param(100, None, None, 100, id="no-pool-yet"),
        pytest.param(100, 100, 100, None, id="as-it-should-be"),
        pytest.param(132, 100, 100, 132, id="inventory-grew"),
        pytest.param(132, 5, 100, None, id="user-edited"),
        pytest.param(132, 5, None, None, id="made-by-a-user"),
        pytest.param(132, None, 100, 132, id="deleted"),
    ],
)
def test_a_users_size_wins(
    wanted: int, present: int | None, last_written: int | None, write: int | None
) -> None:
    """The size is written only on change, and never over what a user has set."""
    assert slots_to_write(wanted, present, last_written) == write


def test_c64_numbers_add_up() -> None:
    """Held and free GPUs are all GPUs, every job is counted once, and open slots never go below 0 (C11)."""
    rig = Rig(gpus=3)
    rig.pools = [PoolState(PoolSettings(), {"eaco": AirflowPool(9)})]
    rig.add(
        *(
            make_job(name, family, gpus=1, run_after_s=at)
            for at, (name, family) in enumerate([("a", "A"), ("b", "B"), ("c", "C"), ("d", "C"), ("e", "C")])
        )
    )
    rig.loop.run_once()
    rig.start("a", "b")
    rig.ledger.set_hold("e", True)
    rig.pools = [PoolState(PoolSettings(), {"eaco": AirflowPool(1)})]
    (numbers,) = count_pools(rig.ledger.view(), rig.pools)
    assert (numbers.gpus, numbers.gpus_held, numbers.gpus_free, numbers.gpus_shared) == (3, 3, 0, 1)
    assert (numbers.running, numbers.leased, numbers.waiting, numbers.on_hold) == (2, 2, 1, 1)
    assert (numbers.slots, numbers.slots_used, numbers.slots_open) == (1, 4, 0)


def test_a_pool_without_a_limit_or_without_a_name_has_no_open_count(ledger: CountingLedger) -> None:
    """Unlimited and unknown are not numbers."""
    unlimited, unknown = (
        count_pools(ledger.view(), [PoolState(PoolSettings(), airflow_pools)])[0]
        for airflow_pools in ({"eaco": AirflowPool(None)}, {})
    )
    assert (unlimited.slots, unlimited.slots_open) == (unknown.slots, unknown.slots_open) == (None, None)
