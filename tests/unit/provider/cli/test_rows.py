"""Rows: numbers that add up, never negative, and unknown where nobody knows (I4)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import ForeignProcess, Gpu, GpuHealth, GpuReading, Node
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey, Progress, Share
from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.profile import CoallocationProfile, SoloProfile, family_set
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.ports import JobRecord, LedgerView
from airflow_provider_eaco.provider.cli.pool_rows import airflow_pool_rows, pool_rows
from airflow_provider_eaco.provider.cli.profile_rows import profile_details, profile_rows
from airflow_provider_eaco.provider.cli.rows import (
    columns,
    gpu_rows,
    lease_rows,
    node_rows,
    shown_gpus,
    shown_request,
    told_limits,
)

NOW_S = 1000.0
POOL = PoolSettings()
WHO = (ForeignProcess(7, "alice"), ForeignProcess(8))


def gpus(node: str, count: int, health: GpuHealth = GpuHealth.HEALTHY) -> tuple[Gpu, ...]:
    return tuple(Gpu(f"{node}-g{n}", node, n, "V100", 16384, 450, health) for n in range(count))


def job(name: str, pool: str = "eaco", pool_slots: int = 1) -> Job:
    return Job(name, GpuRequest(1, "f"), pool, 0.0, OrderKey(0.0, "d", name, -1, name), pool_slots=pool_slots)


def view(
    *records: JobRecord,
    leases: tuple[Lease, ...] = (),
    nodes: tuple[Node, ...] = (Node("n1", gpus("n1", 2)),),
) -> LedgerView:
    return LedgerView(NOW_S, nodes, records, leases)


def lease(job_id: str, *uuids: str, token: int = 1) -> Lease:
    return Lease(token, job_id, Placement("n1", uuids), LeaseState.TRIAL, 2, 900.0)


def running(name: str, **job_settings: object) -> JobRecord:
    return JobRecord(job(name, **job_settings), JobPhase.RUNNING, "s")  # type: ignore[arg-type] # as named


WAITING = JobRecord(job("w"), JobPhase.WAITING, "s")


@pytest.mark.parametrize(
    ("airflow_pool", "mode", "slots", "open_slots", "note"),
    [
        pytest.param(AirflowPool(4), PoolMode.SHARE, "4", "2", "", id="room"),
        pytest.param(AirflowPool(2), PoolMode.SHARE, "2", "0", "full", id="full"),
        pytest.param(AirflowPool(1), PoolMode.SHARE, "1", "0", "closed: 2 slots in use of 1", id="shrunk"),
        pytest.param(AirflowPool(0), PoolMode.SHARE, "0", "0", "closed: it has 0 slots", id="zero"),
        pytest.param(AirflowPool(None), PoolMode.SHARE, "unlimited", "unlimited", "", id="unlimited"),
        pytest.param(None, PoolMode.SHARE, "unknown", "unknown", "not made yet", id="missing"),
        pytest.param(AirflowPool(4), PoolMode.OFF, "4", "2", "off: tasks pass through", id="off"),
        pytest.param(AirflowPool(4), PoolMode.OBSERVE, "4", "2", "observe: nothing is held", id="observe"),
    ],
)
def test_c11_open_slots_are_never_negative(
    airflow_pool: AirflowPool | None, mode: PoolMode, slots: str, open_slots: str, note: str
) -> None:
    """A pool shrunk below its use shows 0 open slots and says that it is closed; -1 slots are unlimited."""
    stored = view(WAITING, running("a", pool_slots=2), leases=(lease("a", "n1-g0"),))
    known = {} if airflow_pool is None else {"eaco": airflow_pool}
    (row,) = airflow_pool_rows(stored, [PoolState(replace(POOL, mode=mode), known)])
    assert (row.slots, row.used, row.open, row.waiting) == (slots, "2", open_slots, "1")
    assert row.note.startswith(note)
    assert bool(row.note) == bool(note)


def test_c10_an_airflow_pool_that_jobs_come_from_has_a_row_of_its_own() -> None:
    """Jobs of an Airflow pool that is not declared are counted under its name, also if it does not exist."""
    stored = view(WAITING, JobRecord(job("x", pool="misspelt"), JobPhase.WAITING, "s"))
    first, second = airflow_pool_rows(stored, [PoolState(POOL, {"eaco": AirflowPool(1)})])
    assert (first.airflow_pool, first.waiting) == ("eaco", "1")
    assert (second.pool, second.airflow_pool, second.waiting) == ("eaco", "misspelt", "1")
    assert second.note == "does not exist in Airflow"


def test_a_job_whose_pool_is_not_looked_up_yet_is_counted() -> None:
    """A job that was handed over a moment ago has a line of its own, which says why its pool is unknown."""
    stored = view(JobRecord(job("x", pool=""), JobPhase.WAITING, "s"))
    row = airflow_pool_rows(stored, [PoolState(POOL, {"eaco": AirflowPool(1)})])[1]
    assert (row.airflow_pool, row.slots, row.waiting) == ("unknown", "unknown", "1")
    assert row.note.startswith("just queued")


@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        (PoolMode.OFF, "eaco"),
        (PoolMode.OBSERVE, "eaco"),
        (PoolMode.EXCLUSIVE, "exclusive"),
        (PoolMode.SHARE, "eaco"),
    ],
)
def test_a_gpu_pool_shows_the_policy_that_decides(mode: PoolMode, policy: str) -> None:
    """Only mode ``exclusive`` puts its own policy in place of the configured one."""
    (row,) = pool_rows(view(WAITING), [PoolState(replace(POOL, mode=mode, policy="eaco"), {})])
    assert (row.mode, row.policy) == (mode.value, policy)


def test_a_gpu_pool_counts_its_jobs_and_gpus() -> None:
    """The numbers of a pool add up: those who hold GPUs, those who wait, and GPUs that several hold."""
    stored = view(
        WAITING, running("a"), running("b"), leases=(lease("a", "n1-g0"), lease("b", "n1-g0", token=2))
    )
    (row,) = pool_rows(stored, [PoolState(replace(POOL, mode=PoolMode.EXCLUSIVE), {})])
    assert (row.mode, row.policy, row.ordering) == ("exclusive", "exclusive", "fifo")
    assert (row.gpus, row.gpus_used, row.gpus_shared) == ("2", "1", "1")
    assert (row.waiting, row.on_hold, row.running) == ("1", "0", "2")


def test_a_shared_gpu_is_used_once() -> None:
    """Used GPUs are never more than there are, however many jobs share one, and lost ones do not count."""
    leases = (lease("a", "n1-g0"), lease("b", "n1-g0", token=2), lease("c", "gone", token=3))
    (row,) = node_rows(view(leases=leases), {})
    assert (row.gpus, row.gpus_used, row.gpus_unhealthy, row.gpus_unknown) == ("2", "1", "0", "0")


def test_the_power_of_a_node_is_unknown_unless_all_of_it_is_known() -> None:
    """A sum over some of the GPUs is not shown as the node's."""
    readings = {"n1-g0": GpuReading("n1-g0", NOW_S, power_w=70.0)}
    assert node_rows(view(), readings)[0].power == "unknown"
    readings["n1-g1"] = GpuReading("n1-g1", NOW_S, power_w=80.0)
    assert node_rows(view(), readings)[0].power == "150 W"


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (Node("n", ()), "available"),
        (Node("n", (), draining=True), "draining"),
        (Node("n", (), draining=True, available=False), "unavailable"),
    ],
)
def test_a_node_says_whether_new_work_may_start(node: Node, state: str) -> None:
    """The most severe state is the one that is shown; a node that never reported has no age."""
    (row,) = node_rows(view(nodes=(node,)), {})
    assert (row.state, row.gpu_model, row.power, row.last_report) == (state, "unknown", "unknown", "unknown")


@pytest.mark.parametrize("power", [NodePower.ASLEEP, NodePower.WAKING])
def test_a_node_that_sleeps_by_our_will_is_not_called_unavailable(power: NodePower) -> None:
    """Its silence is no fault; other nodes say what they are."""
    nodes = (Node("a", (), available=False), Node("b", (), available=False))
    rows = node_rows(view(nodes=nodes), {}, {"a": NodePowerState(power, NOW_S)})
    assert [row.state for row in rows] == [power.value, "unavailable"]


@pytest.mark.parametrize(
    ("seen", "shown"),
    [
        ({}, "unknown"),
        ({"foreign_memory_mib": 0, "foreign_processes": 0}, "none"),
        ({"foreign_memory_mib": 9000}, "9000 MiB: processes unknown"),
        (
            {"foreign_memory_mib": 9000, "foreign_processes": 2, "foreign_by": WHO},
            "9000 MiB: PID 7 (alice), PID 8 (user unknown)",
        ),
        ({"foreign_processes": 1, "foreign_by": WHO[:1]}, "unknown: PID 7 (alice)"),
    ],
)
def test_c28_c34_a_gpu_shows_who_else_is_on_it(seen: dict[str, Any], shown: str) -> None:
    """How much and by which processes, in the list of GPUs; where nobody can tell, that is what it says."""
    assert gpu_rows(view(), {"n1-g0": GpuReading("n1-g0", NOW_S, **seen)})[0].foreign == shown


@pytest.mark.parametrize(("seen_pct", "shown"), [(None, "unknown"), (0.0, "0.0 %"), (37.0, "37.0 %")])
def test_c45_an_unknown_utilisation_is_shown_as_unknown(seen_pct: float | None, shown: str) -> None:
    """A GPU that tells no utilisation, and one that nobody has read, are not shown as idle."""
    readings = {"n1-g0": GpuReading("n1-g0", NOW_S, utilisation_pct=seen_pct)}
    assert [row.utilisation for row in gpu_rows(view(), readings)] == [shown, "unknown"]


def test_an_impossible_reading_is_unknown() -> None:
    """A meter that says more than 100 per cent or less than nothing is not believed."""
    readings = {"n1-g0": GpuReading("n1-g0", NOW_S, utilisation_pct=101.0, power_w=-3.0)}
    first = gpu_rows(view(), readings)[0]
    assert (first.utilisation, first.power, first.memory) == ("unknown", "unknown", "15934 MiB")


def test_a_gpu_shows_what_its_holders_were_told_of_its_power_limit() -> None:
    """The last word under the present leases counts; what was told of an earlier run is over."""
    leases = (lease("a", "n1-g0"), lease("b", "n1-g0", token=2), lease("c", "n1-g1", token=3))
    last = {
        "a": SimpleNamespace(text="held to 200 W a board, of 300 W", at_s=leases[0].granted_s),
        "b": SimpleNamespace(text="no longer held to 200 W a board", at_s=leases[1].granted_s + 1),
        "c": SimpleNamespace(text="held to 150 W a board, of 300 W", at_s=leases[2].granted_s - 1),
    }
    seen = view(leases=leases)
    rows = gpu_rows(seen, {}, told_limits(seen, last))
    assert [row.power_limit for row in rows] == ["no longer held to 200 W a board", "none set"]


def test_a_lease_names_its_co_residents() -> None:
    """Each holder is shown with those who hold the same GPUs, by task; a job that is gone by its id."""
    progressed = replace(running("a"), job=replace(job("a"), progress=Progress(3, 10)))
    leases = (lease("a", "n1-g0", "n1-g1"), lease("gone", "n1-g0", "n1-g1", token=2))
    first, second = lease_rows(view(progressed, leases=leases), {"a": "run1"})
    assert (first.task, first.run, first.with_tasks, first.units) == ("d.a", "run1", "job gone", "3 of 10")
    assert (first.gpus, first.state) == ("0-1", "trial")
    assert (second.task, second.run, second.with_tasks, second.units) == (
        "job gone",
        "unknown",
        "d.a",
        "unknown",
    )


def test_gpus_are_shown_as_runs() -> None:
    """Neighbouring indices are joined; a GPU that is in no inventory is shown by its UUID."""
    assert shown_gpus(["a", "b", "c", "d", "x"], {"a": 0, "b": 1, "c": 2, "d": 5}) == "0-2, 5, x"


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (GpuRequest(1, "f", max_stretch=None), "1 GPU"),
        (GpuRequest(2, "f", gpu_memory_mib=10240), "2 GPUs, 10240 MiB each, stretch <= 1.1"),
        (
            GpuRequest(1, "f", None, ("A", "B"), 512, None, 3600.0, Share.NEVER),
            "1 GPU, A or B, 512 MiB of host memory, within 1 h, share never",
        ),
    ],
)
def test_c39_a_request_is_shown_in_mib(request_: GpuRequest, text: str) -> None:
    """What was asked is shown with its units, memory in MiB; what was not asked is left out."""
    assert shown_request(request_) == text


def test_c61_a_profile_shows_its_age_and_source() -> None:
    """Age, source and staleness of a profile are shown; unknown numbers are unknown."""
    solo = SoloProfile("f", "V100", 1, unit_s=2.0, updated_s=NOW_S - 7200, stale=True)
    pair = CoallocationProfile(family_set(("f", "g")), "V100", 1, {"f": 1.25, "g": 1.0})
    first, second = profile_rows([solo, pair], NOW_S)
    assert (first.age, first.source, first.pace) == ("2 h", "measured, stale", "2.00 s per unit")
    assert (second.age, second.pace, second.power) == ("unknown", "f x 1.250, g x 1.000", "unknown")
    details = profile_details(pair, NOW_S)
    assert (details.memory_peak, details.undone, details.reference) == ("-", "0", "unknown")
    assert list(columns(first)) == [
        "families", "gpu_model", "gpus", "pace", "power", "utilisation", "samples", "source", "age",
    ]  # fmt: skip
