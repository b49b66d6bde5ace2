"""From a view of the ledger to frozen snapshots that share what did not change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.gpu import GpuHealth, GpuReading
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import AirflowPool, ClusterSnapshot, Observation, PoolState
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.snapshots import SnapshotBuilder, may_use
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from tests.builders import NOW_S, make_job, make_node
from tests.contract.parts import ManualClock
from tests.unit.engine.rig import unlimited


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S)


@pytest.fixture
def ledger(clock: ManualClock) -> MemoryLedger:
    ledger = MemoryLedger(clock)
    ledger.save_nodes([make_node(name, 4).node for name in ("n1", "n2", "n3")])
    return ledger


def build(
    builder: SnapshotBuilder, view: LedgerView, pools: list[PoolState] | None = None
) -> ClusterSnapshot:
    """The snapshot of the first pool."""
    pools = pools or unlimited(PoolSettings())
    return builder.build(view, pools, ProfileBook(), {})[pools[0].settings.name]


def hold(ledger: MemoryLedger, job_id: str, node: str, *indices: int) -> Placement:
    placement = Placement(node, tuple(f"{node}-gpu{index:02d}" for index in indices))
    job = make_job(job_id, gpus=len(indices))
    ledger.add_waiting(job, "owner")
    view = ledger.view()
    there = tuple(lease.job_id for lease in view.leases if lease.placement == placement)
    state = LeaseState.TRIAL if there else LeaseState.EXCLUSIVE
    ledger.grant(Launch(job, placement, there), state, view.gpu_versions, "owner")
    return placement


def test_held_and_free_gpus_add_up(ledger: MemoryLedger) -> None:
    """Every GPU of a node is in exactly one set or free; residents carry their leases and observations."""
    placement = hold(ledger, "a", "n1", 0, 1)
    hold(ledger, "b", "n1", 0, 1)
    hold(ledger, "c", "n1", 3)
    ledger.save_progress("a", make_job().progress, Observation(2, 1, 5.0, 5.0))
    state = build(SnapshotBuilder(), ledger.view()).nodes["n1"]
    assert [held.placement.gpu_uuids for held in state.sets] == [placement.gpu_uuids, ("n1-gpu03",)]
    assert [gpu.uuid for gpu in state.free] == ["n1-gpu02"]
    first, second = state.sets[0].residents
    assert (first.job.job_id, first.state, first.observation) == (
        "a",
        LeaseState.TRIAL,
        Observation(2, 1, 5.0, 5.0),
    )
    assert (second.job.job_id, second.set_version, second.trial_since_s) == ("b", 2, NOW_S)


def test_an_unchanged_node_is_the_same_object(ledger: MemoryLedger, clock: ManualClock) -> None:
    """A grant on one node rebuilds that node and no other, also when all have reported again meanwhile."""
    builder = SnapshotBuilder()
    hold(ledger, "a", "n1", 0)
    hold(ledger, "b", "n1", 1)
    before = build(builder, ledger.view())
    clock.advance(10)
    ledger.save_nodes([make_node(name, 4).node for name in ("n1", "n2", "n3")])
    hold(ledger, "c", "n1", 1)
    after = build(builder, ledger.view())
    assert after.nodes["n2"] is before.nodes["n2"]
    assert after.nodes["n3"] is before.nodes["n3"]
    assert after.nodes["n1"] is not before.nodes["n1"]
    assert after.nodes["n1"].sets[0] is before.nodes["n1"].sets[0], "a set that did not change is shared"
    assert len(after.nodes["n1"].sets[1].residents) == 2


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"draining": True}, id="draining"),
        pytest.param({"available": False}, id="unavailable"),
        pytest.param({"time_scale": 60.0}, id="time-scale"),
    ],
)
def test_a_changed_node_is_rebuilt(ledger: MemoryLedger, change: dict[str, object]) -> None:
    """Whatever a policy may look at shows in the next snapshot."""
    builder = SnapshotBuilder()
    view = ledger.view()
    build(builder, view)
    changed = replace(view, nodes=(replace(view.nodes[0], **change), *view.nodes[1:]))  # type: ignore[arg-type]  # fields by name
    assert build(builder, changed).nodes["n1"].node == changed.nodes[0]


def test_a_sick_gpu_shows(ledger: MemoryLedger) -> None:
    """The health of a GPU reaches sets and free GPUs alike."""
    builder = SnapshotBuilder()
    hold(ledger, "a", "n1", 0)
    build(builder, ledger.view())
    node = make_node("n1", 4).node
    sick = tuple(replace(gpu, health=GpuHealth.UNHEALTHY) for gpu in node.gpus)
    ledger.save_nodes([replace(node, gpus=sick)])
    state = build(builder, ledger.view()).nodes["n1"]
    assert {gpu.health for gpu in (*state.sets[0].gpus, *state.free)} == {GpuHealth.UNHEALTHY}


def test_a_silent_node_takes_nothing_new(ledger: MemoryLedger, clock: ManualClock) -> None:
    """A node without a report for too long is unavailable until it reports again; its residents stay."""
    builder = SnapshotBuilder(report_timeout_s=60)
    hold(ledger, "a", "n1", 0)
    clock.advance(61)
    ledger.save_nodes([make_node("n2", 4).node])
    snapshot = build(builder, ledger.view())
    assert {name: state.node.available for name, state in snapshot.nodes.items()} == {
        "n1": False,
        "n2": True,
        "n3": False,
    }
    assert len(snapshot.nodes["n1"].sets) == 1
    ledger.save_nodes([make_node("n1", 4).node])
    assert build(builder, ledger.view()).nodes["n1"].node.available


def test_a_pool_sees_its_nodes_and_its_jobs(ledger: MemoryLedger) -> None:
    """Nodes by the pool's patterns, waiting jobs by their Airflow pool, used slots by that pool's leases."""
    settings = (PoolSettings("one", nodes=("n1", "n[2]")), PoolSettings("two", nodes=("n3",)))
    airflow_pools = {"one": AirflowPool(4), "two": AirflowPool(None, used=99), "other": AirflowPool(5)}
    pools = [PoolState(each, airflow_pools) for each in settings]
    for job_id, pool in (("a", "one"), ("b", "two"), ("c", "other")):
        ledger.add_waiting(make_job(job_id, pool=pool, pool_slots=2), "owner")
    ledger.add_waiting(make_job("held", gpus=1, pool="other", pool_slots=3), "owner")
    view = ledger.view()
    held = make_job("held", gpus=1)
    ledger.grant(
        Launch(held, Placement("n1", ("n1-gpu00",)), ()), LeaseState.EXCLUSIVE, view.gpu_versions, "o"
    )
    reading = GpuReading("n1-gpu00", NOW_S, power_w=10.0)
    snapshots = SnapshotBuilder().build(ledger.view(), pools, ProfileBook(), {reading.uuid: reading})
    assert sorted(snapshots["one"].nodes) == ["n1", "n2"]
    assert sorted(snapshots["two"].nodes) == ["n3"]
    assert [job.job_id for job in snapshots["one"].waiting] == ["a", "c"]
    assert [job.job_id for job in snapshots["two"].waiting] == ["b"]
    used = {name: pool.used for name, pool in snapshots["one"].pool.airflow_pools.items()}
    assert used == {"one": 0, "two": 0, "other": 3}
    others = {name: seen.pool.others for name, seen in snapshots.items()}
    assert others == {"one": frozenset(), "two": {"other"}}, "an undeclared Airflow pool is the first one's"
    assert snapshots["one"].readings == {"n1-gpu00": reading}


def test_a_lease_without_its_job_keeps_its_gpus(ledger: MemoryLedger) -> None:
    """GPUs whose holder cannot be seen are neither free nor shared."""
    hold(ledger, "a", "n1", 0, 1)
    view = replace(ledger.view(), jobs=(), kept_index=None)
    state = build(SnapshotBuilder(), view).nodes["n1"]
    assert state.sets == ()
    assert [gpu.uuid for gpu in state.free] == ["n1-gpu02", "n1-gpu03"]


def test_a_held_gpu_that_left_the_inventory_is_unknown(ledger: MemoryLedger) -> None:
    """A set on a GPU that its node no longer lists has a GPU of unknown health and memory."""
    hold(ledger, "a", "n1", 0)
    view = ledger.view()
    stripped = replace(view, nodes=(replace(view.nodes[0], gpus=view.nodes[0].gpus[1:]), *view.nodes[1:]))
    (gpu,) = build(SnapshotBuilder(), stripped).nodes["n1"].sets[0].gpus
    assert (gpu.uuid, gpu.health, gpu.memory_total_mib) == ("n1-gpu00", GpuHealth.UNKNOWN, None)


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [(("*",), "any", True), (("gpu-*", "n1"), "n1", True), (("gpu-*",), "GPU-1", False), ((), "n1", False)],
)
def test_nodes_by_pattern(patterns: tuple[str, ...], name: str, expected: bool) -> None:
    """Patterns are those of a shell and tell capitals apart."""
    assert may_use(PoolSettings(nodes=patterns), name) is expected


def test_who_left_the_view_keeps_the_gpus_and_is_judged_no_more(ledger: MemoryLedger) -> None:
    """A lease whose job is missing keeps its GPUs from everybody; the set that it was is gone, then back."""
    hold(ledger, "a", "n1", 0)
    hold(ledger, "b", "n1", 1)
    builder = SnapshotBuilder()
    whole = replace(ledger.view(), kept_index=None)
    without_b = replace(whole, jobs=tuple(record for record in whole.jobs if record.job.job_id != "b"))
    for view, sets in ((whole, 2), (without_b, 1), (whole, 2)):
        state = build(builder, view).nodes["n1"]
        assert (len(state.sets), len(state.free)) == (sets, 2)


def test_only_the_set_that_changed_is_another_object(ledger: MemoryLedger) -> None:
    """A report replaces its own set and its node's state; other sets and the free GPUs stay as they were."""
    hold(ledger, "a", "n1", 0)
    hold(ledger, "b", "n1", 1)
    builder = SnapshotBuilder()
    before = build(builder, ledger.view()).nodes["n1"]
    ledger.save_progress("b", make_job().progress, Observation(1, 1, 5.0, 5.0))
    after = build(builder, ledger.view()).nodes["n1"]
    assert after.sets[0] is before.sets[0]
    assert after.sets[1] is not before.sets[1]
    assert after.free is before.free
