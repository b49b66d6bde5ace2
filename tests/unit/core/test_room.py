"""Room on nodes and GPUs: memory, host memory, health, and somebody else's use."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.gpu import ForeignProcess, GpuHealth, GpuReading
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import CoallocationProfile, family_set
from airflow_provider_eaco.core.model.snapshot import NodeState
from airflow_provider_eaco.core.policy.ordering import FifoOrdering
from airflow_provider_eaco.core.policy.places import Ground
from airflow_provider_eaco.core.policy.registry import make_policy
from tests.builders import (
    NOW_S,
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_pair,
    make_resident,
    make_snapshot,
    make_solo,
)
from tests.unit.core.conftest import Cycle
from tests.unit.core.plans import codes_of, launched, texts_of


def _confirm(node: NodeState) -> NodeState:
    """Return the node with every trial on it confirmed."""
    sets = tuple(
        replace(held, residents=tuple(replace(each, state=LeaseState.CONFIRMED) for each in held.residents))
        for held in node.sets
    )
    return replace(node, sets=sets)


def _fill_one_gpu(
    cycle: Cycle, memory_mib: int, peak_mib: int, jobs: int, *, reserved_mib: int = 0
) -> tuple[int, str]:
    """Let jobs come one cycle after another, each trial confirmed; return how many share, and why no more."""
    solo = make_solo("A", memory_peak_mib=None, utilisation_pct=0.5, power_w=12.0, checkpoints=True)
    settings = PoolSettings(max_residents=99)
    node, text = make_node(gpus=1, model="T4", memory_mib=memory_mib, reserved_mib=reserved_mib), ""
    for number in range(jobs):
        job = make_job(f"j{number:02d}", "A", 1, gpu_memory_mib=peak_mib, max_stretch=None)
        snapshot = make_snapshot(node, waiting=[job], settings=settings, profiles=make_book(solo))
        plan = cycle(snapshot)
        if job.job_id not in launched(plan):
            text = texts_of(plan, job.job_id)
            break
        node = snapshot.with_launch(job, launched(plan)[job.job_id].placement).nodes["node-a"]
        node = _confirm(node)
    return len(node.sets[0].residents), text


def test_c32_exact_fit_with_integers(cycle: Cycle) -> None:
    """Of 24 x 2000 MiB on 46068 MiB with a margin of 512 exactly 22 run; the 23rd waits with its numbers."""
    count, text = _fill_one_gpu(cycle, 46_068, 2000, 24)
    assert count == 22
    assert "needs 2512 MiB per GPU with margin, the best candidate has 2068 of 46068 MiB" in text


@pytest.mark.parametrize(("peak_mib", "run"), [(5120, 2), (4970, 2), (4800, 2), (4799, 3)])
def test_c33_the_drivers_reserve_and_the_margin_are_no_room(cycle: Cycle, peak_mib: int, run: int) -> None:
    """Of 15360 MiB the driver keeps 450 and the margin 512: three tasks of a third of the card, or of what is
    left without the reserve, are one too many; three that fit beside both run, to the MiB.
    """
    count, text = _fill_one_gpu(cycle, 15_360, peak_mib, 3, reserved_mib=450)
    assert count == run
    told = f"needs {peak_mib + 512} MiB per GPU with margin, the best candidate has {14_910 - 2 * peak_mib}"
    assert (f"{told} of 14910 MiB" in text) is (run == 2)


@pytest.mark.parametrize(("asked_mib", "starts"), [(14_398, True), (14_399, False)])
def test_c33_what_is_usable_is_shown_without_reserve_and_margin(
    cycle: Cycle, asked_mib: int, starts: bool
) -> None:
    """The largest that fits is total - reserve - margin, and who asks for a MiB more is told that number."""
    node = make_node(gpus=1, model="T4", memory_mib=15_360, reserved_mib=450)
    settings = PoolSettings(reject_after_s=0)
    job = make_job("j", "new", 1, gpu_memory_mib=asked_mib)
    plan = cycle(make_snapshot(node, waiting=[job], settings=settings))
    assert ("j" in launched(plan)) is starts
    if not starts:
        told = "the largest usable is 1 x T4 with 14398 MiB each, less reserve and margin"
        assert told in texts_of(plan, "j")


def test_c35_simultaneous_starts_count_declared_peaks(cycle: Cycle) -> None:
    """Ten tasks of 20 GiB that have not allocated anything yet: three start on 80 GiB, not ten."""
    count, text = _fill_one_gpu(cycle, 80 * 1024, 20 * 1024, 10)
    assert count == 3
    assert "needs 20992 MiB per GPU with margin, the best candidate has 20480 of 81920 MiB" in text


def _measured_together(count: int) -> CoallocationProfile:
    return CoallocationProfile(family_set(["A"] * count), "T4", 1, {"A": 1.0}, 12.5, 2.0, samples=3)


@pytest.mark.parametrize(
    "together", [[], [_measured_together(count) for count in (2, 3, 4)]], ids=["estimated", "measured"]
)
def test_c35_ten_that_wait_at_once_start_only_as_far_as_their_peaks_fit(
    cycle: Cycle, together: list[CoallocationProfile]
) -> None:
    """Ten of 20 GiB wait in one snapshot, and the meter shows an empty card: no cycle, nor all of them
    together, starts a fourth on 80 GiB, also where four were measured to do well together.
    """
    solo = make_solo("A", memory_peak_mib=20 * 1024, utilisation_pct=0.5, power_w=12.0, checkpoints=True)
    settings = PoolSettings(max_residents=99)
    node = make_node(gpus=1, model="T4", memory_mib=80 * 1024)
    jobs = [make_job(f"j{n}", "A", 1, gpu_memory_mib=20 * 1024, max_stretch=None) for n in range(10)]
    started: list[str] = []
    for _ in jobs:
        waiting = [job for job in jobs if job.job_id not in started]
        nothing_yet = [GpuReading("node-a-gpu00", NOW_S, memory_used_mib=0, utilisation_pct=0.0)]
        book = make_book(solo, *together)
        snapshot = make_snapshot(
            node, waiting=waiting, settings=settings, profiles=book, readings=nothing_yet
        )
        for job_id, launch in launched(cycle(snapshot)).items():
            started.append(job_id)
            job = next(each for each in waiting if each.job_id == job_id)
            snapshot = snapshot.with_launch(job, launch.placement)
        assert len(started) <= 3
        node = _confirm(snapshot.nodes["node-a"])
    assert started == ["j0", "j1", "j2"]


def test_memory_in_use_counts_where_it_is_more_than_declared(cycle: Cycle) -> None:
    """A resident that holds more than it declared leaves only the rest to a newcomer."""
    book = make_book(make_solo("A"), make_pair({"A": 1.0, "B": 1.0}), make_solo("B"))
    node = hold_gpus(make_node(gpus=1, model="T4", memory_mib=16_000), make_resident(make_job("a", "A", 1)))
    readings = [GpuReading("node-a-gpu00", NOW_S, memory_used_mib=13_000)]
    plan = cycle(make_snapshot(node, waiting=[make_job("b", "B", 1)], profiles=book, readings=readings))
    assert codes_of(plan, "b") == ["memory_would_overflow", "waiting_for_gpu"]
    assert "has 3000 of 16000 MiB" in texts_of(plan, "b")


@pytest.mark.parametrize("unknown", ["resident", "newcomer", "card"])
def test_unknown_memory_is_never_shared(cycle: Cycle, unknown: str) -> None:
    """Without the memory of resident, newcomer or card nobody joins; unknown is not zero."""
    resident = make_job("r", "J3", gpu_memory_mib=None if unknown != "newcomer" else 4000)
    job = make_job("n", "J1", gpu_memory_mib=None if unknown != "resident" else 4000)
    node = make_node(memory_mib=None if unknown == "card" else 32_768)
    plan = cycle(make_snapshot(hold_gpus(node, make_resident(resident)), waiting=[job]))
    assert codes_of(plan, "n") == ["memory_would_overflow", "waiting_for_gpu"]
    assert "unknown" in texts_of(plan, "n")


def _with_health(node: NodeState, health: GpuHealth) -> NodeState:
    sick = tuple(replace(gpu, health=health) for gpu in node.node.gpus)
    return NodeState(replace(node.node, gpus=sick), free=sick)


NODE_TROUBLES = {
    "no_worker": make_node(available=False),
    "draining": make_node(draining=True),
    "gpu_unhealthy": _with_health(make_node(gpus=8), GpuHealth.UNHEALTHY),
    "unknown health": _with_health(make_node(gpus=8), GpuHealth.UNKNOWN),
}


@pytest.mark.parametrize("case", NODE_TROUBLES)
def test_a_nodes_trouble_is_a_reason_only_where_every_node_has_some(cycle: Cycle, case: str) -> None:
    """With the only node in trouble its reason is first; with a sound busy node beside it jobs just wait."""
    plan = cycle(make_snapshot(NODE_TROUBLES[case], waiting=[make_job("j", "new")]))
    assert codes_of(plan, "j")[0] == case.replace("unknown health", "gpu_unhealthy")
    busy = hold_gpus(make_node("node-b"), make_resident(make_job("r", "other")))
    plan = cycle(make_snapshot(NODE_TROUBLES[case], busy, waiting=[make_job("j", "new")]))
    assert codes_of(plan, "j") == ["profile_missing", "waiting_for_gpu"]


def test_c34_memory_of_somebody_else_keeps_jobs_away_until_it_goes(cycle: Cycle) -> None:
    """A foreign process on the only GPU is named with its MiB; within the margin it does not matter."""
    node = make_node(gpus=1)
    for foreign_mib, starts in ((79_000, False), (512, True), (None, True)):
        readings = [GpuReading("node-a-gpu00", NOW_S, foreign_memory_mib=foreign_mib)]
        plan = cycle(make_snapshot(node, waiting=[make_job("j", "new", 1)], readings=readings))
        assert ("j" in launched(plan)) is starts
    readings = [GpuReading("node-a-gpu00", NOW_S, foreign_memory_mib=79_000)]
    plan = cycle(make_snapshot(node, waiting=[make_job("j", "new", 1)], readings=readings))
    assert codes_of(plan, "j") == ["foreign_use", "waiting_for_gpu"]
    assert "79000 MiB on node node-a, processes: unknown" in texts_of(plan, "j")


def test_c34_the_reason_names_processes_and_users(cycle: Cycle) -> None:
    """Each pid once and in order, a user who cannot be read as unknown; of many a few and how many more."""
    gpus = [f"node-a-gpu0{index}" for index in range(3)]
    by = [
        (ForeignProcess(20), ForeignProcess(7, "alice")),
        (ForeignProcess(7, "alice"),),
        tuple(ForeignProcess(pid, "bob") for pid in range(30, 34)),
    ]
    for count, who in ((2, "PID 7 (alice), PID 20 (user unknown)"), (3, "PID 31 (bob) and 2 more")):
        readings = [
            GpuReading(uuid, NOW_S, foreign_memory_mib=9000 + index, foreign_by=by[index])
            for index, uuid in enumerate(gpus[:count])
        ]
        elsewhere = make_node("node-b", gpus=1, available=False)
        waiting = [make_job("j", "new", count)]
        plan = cycle(make_snapshot(make_node(gpus=count), elsewhere, waiting=waiting, readings=readings))
        told = texts_of(plan, "j")
        assert f"by somebody else: {8999 + count} MiB on node node-a, processes: PID 7 (alice)" in told
        assert who in told


def test_c34_what_changes_with_somebody_else_in_every_cycle_is_not_remembered_for_ever() -> None:
    """A stranger's memory and process differ in each of many cycles: what a policy keeps from cycle to cycle
    does not grow with them, and the sentence follows.
    """
    settings = PoolSettings()
    policy = make_policy(settings)
    kept: dict[int, int] = {}
    for number in range(400):
        seen = {"foreign_memory_mib": 9000 + number, "foreign_by": (ForeignProcess(100 + number, "alice"),)}
        readings = [GpuReading("node-a-gpu00", NOW_S, **seen)]
        snapshot = make_snapshot(
            make_node(gpus=1), waiting=[make_job("j", "new", 1)], readings=readings, now_s=NOW_S + number
        )
        told = texts_of(run_cycle(policy, FifoOrdering(), snapshot), "j")
        assert f"{9000 + number} MiB on node node-a, processes: PID {100 + number} (alice)" in told
        if number in (99, 399):
            kept[number] = sum(isinstance(each, Ground) for each in gc.get_objects())
    assert kept[399] - kept[99] < 100


def test_somebody_else_may_move_from_one_gpu_to_another() -> None:
    """A policy that has seen a foreign process on one GPU follows it to the next: other GPUs are free now."""
    settings = PoolSettings()
    policy = make_policy(settings)
    for foreign, free in ((0, 1), (1, 0), (0, 1)):
        readings = [GpuReading(f"node-a-gpu0{foreign}", NOW_S, foreign_memory_mib=9000)]
        job = make_job("j", "new", 1)
        snapshot = make_snapshot(make_node(gpus=2), waiting=[job], readings=readings, settings=settings)
        plan = run_cycle(policy, FifoOrdering(), snapshot)
        assert launched(plan)["j"].placement.gpu_uuids == (f"node-a-gpu0{free}",)


@pytest.mark.parametrize(("total_mib", "starts"), [(64_000, True), (40_000, False), (None, False)])
def test_c16_host_memory_waits_with_its_own_reason(cycle: Cycle, total_mib: int | None, starts: bool) -> None:
    """A GPU fits, the node's host memory does not: that is the reason, and unknown memory proves nothing."""
    resident = make_resident(make_job("r", "new", 1, host_memory_mib=30_000))
    node = hold_gpus(make_node(host_memory_mib=total_mib), resident)
    plan = cycle(make_snapshot(node, waiting=[make_job("j", "n2", 1, host_memory_mib=20_000)]))
    assert ("j" in launched(plan)) is starts
    if not starts:
        assert codes_of(plan, "j")[0] == "host_memory"
        free = "unknown" if total_mib is None else "10000 MiB"
        assert f"20000 MiB of host memory asked, {free}" in texts_of(plan, "j")
