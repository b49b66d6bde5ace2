"""The simulated node as a meter: readings, accounts, history, configuration."""

from __future__ import annotations

import math
from pathlib import Path
from uuid import UUID

import pytest

from airflow_provider_eaco.core.energy.accounting import SplitRule
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.ports import EnergyMethod, RunMeter
from airflow_provider_eaco.telemetry.history import ResidentSegment
from airflow_provider_eaco.telemetry.simulated import (
    INTERIM_S,
    SimulatedCluster,
    gpu_uuid,
    read_history,
    simulated_node,
)
from tests.contract.metering_suite import KeptParts
from tests.contract.parts import ManualClock
from tests.unit.telemetry.rig import SCALE, TRUTH, device, make_cluster, occupant

SLOW = occupant("a", 1, "slow")
FAST = occupant("b", 2, "fast")


def test_readings_follow_the_residents(state: Path, clock: ManualClock) -> None:
    """An occupied GPU shows what its set draws and does, an empty one its idle draw and no use."""
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW, FAST])
    busy, idle = cluster.read()
    assert (busy.power_w, busy.utilisation_pct) == (249, 40)
    assert (idle.power_w, idle.utilisation_pct, idle.memory_used_mib) == (49, 0, 0)
    assert busy.foreign_memory_mib == idle.foreign_memory_mib == 0


@pytest.mark.parametrize(
    ("memories", "families", "expected_mib"),
    [
        ((1000, 2000), ("fast", "fast"), 3000),
        ((None, 2000), ("slow", "fast"), 6000),  # the truth knows of "slow"
        ((None, 2000), ("fast", "slow"), None),
        ((3000, None), ("slow", "slow"), 7000),
    ],
)
def test_memory_is_the_request_else_the_truth_else_unknown(
    state: Path,
    clock: ManualClock,
    memories: tuple[int | None, int | None],
    families: tuple[str, str],
    expected_mib: int | None,
) -> None:
    """One resident of unknown memory makes the GPU's use unknown: it is not counted as 0."""
    cluster = make_cluster(state, clock)
    cluster.occupy(
        [
            occupant(f"j{token}", token, family, memory_mib=memory)
            for token, (memory, family) in enumerate(zip(memories, families, strict=True), 1)
        ]
    )
    assert cluster.read()[0].memory_used_mib == expected_mib


def test_a_run_is_metered_while_it_is_alone(state: Path, clock: ManualClock) -> None:
    """Power and utilisation are those of the time without others; the memory is the job's own, always."""
    cluster = make_cluster(state, clock)
    assert cluster.run_meter("a", 1) is None
    cluster.occupy([SLOW])
    assert cluster.run_meter("a", 1) == RunMeter(4000)
    clock.advance(31)
    alone = cluster.run_meter("a", 1)
    assert alone is not None
    assert (alone.power_w, alone.utilisation_pct, alone.memory_peak_mib) == (
        pytest.approx(100),
        pytest.approx(10),
        4000,
    )
    cluster.occupy([SLOW, FAST])
    clock.advance(60)
    assert cluster.run_meter("a", 1) == alone
    assert cluster.run_meter("b", 2) == RunMeter()
    cluster.occupy([])
    assert cluster.run_meter("a", 1) == alone


def test_memory_is_never_more_than_there_is(state: Path, clock: ManualClock) -> None:
    """Requests that no GPU could hold are not shown as use above its memory (invariant I4)."""
    cluster = make_cluster(state, clock)
    cluster.occupy([occupant("a", 1, memory_mib=15_000), occupant("b", 2, memory_mib=15_000)])
    assert cluster.read()[0].memory_used_mib == 16 * 1024


def test_several_gpus_share_the_draw_of_their_set(state: Path, clock: ManualClock) -> None:
    """The draw of a set is spread evenly over its GPUs, and their counters grow alike."""
    cluster = make_cluster(state, clock, gpus=4)
    cluster.occupy([occupant("a", 1, "unheard-of", (0, 1, 2))])
    clock.advance(31)
    readings = cluster.read()
    assert readings[0].power_w == readings[2].power_w == pytest.approx((392 + 158.5 * math.sqrt(40)) / 8)
    assert readings[1].energy_j == pytest.approx((readings[1].power_w or 0) * SCALE)
    assert readings[3].energy_j == pytest.approx(49 * SCALE)


def test_an_account_is_the_jobs_part(state: Path, clock: ManualClock) -> None:
    """Energy, time, work and unit times of a job, also after it has left; nothing of a job never seen."""
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW])
    one = device(state, clock, SLOW, clock.advance)
    for _ in range(2):
        one.begin_unit()
        one.wait_unit()
    for resident in (True, False):
        account = cluster.account("a", 1)
        assert account is not None
        assert account.resident is resident
        assert account.energy_j == pytest.approx(100 * 1200)
        assert (account.run_s, account.work_s) == pytest.approx((1200, 1200))
        assert account.unit_times_s == pytest.approx((600, 600))
        cluster.occupy([])
    assert cluster.account("a", 2) is None
    assert cluster.account("b", 1) is None
    assert cluster.energy_of("a") == pytest.approx(100 * 1200)
    assert cluster.energy_of("b") is None


def test_a_job_that_came_back_has_the_energy_of_both_stays(state: Path, clock: ManualClock) -> None:
    """A job that yielded and returned under a new lease has an account per lease and one energy."""
    cluster = make_cluster(state, clock)
    for token in (1, 2):
        who = occupant("a", token)
        cluster.occupy([who])
        one = device(state, clock, who, clock.advance)
        one.begin_unit()
        one.wait_unit()
        cluster.occupy([])
    accounts = [cluster.account("a", token) for token in (1, 2)]
    assert [account and account.energy_j for account in accounts] == [pytest.approx(60_000)] * 2
    assert cluster.energy_of("a") == pytest.approx(120_000)


def test_an_account_is_written_per_gpu(state: Path, clock: ManualClock) -> None:
    """The energy log gets one part per GPU; they add up to the account. A job never seen writes nothing."""
    cluster, rows = make_cluster(state, clock, gpus=4), KeptParts()
    who = occupant("a", 7, "slow", (1, 2, 3))
    cluster.occupy([who])
    clock.advance(33)
    cluster.occupy([])
    assert cluster.write_energy("a", 7, rows)
    assert not cluster.write_energy("b", 7, rows)
    account = cluster.account("a", 7)
    assert account is not None
    assert [part.gpu_uuid for part in rows.parts] == list(who.placement.gpu_uuids)
    assert {(part.job_id, part.token, part.method) for part in rows.parts} == {("a", 7, EnergyMethod.MODEL)}
    assert sum(part.energy_j or 0 for part in rows.parts) == pytest.approx(account.energy_j)
    assert {part.seconds for part in rows.parts} == {account.run_s}


def test_accounts_and_counters_are_stored_while_runs_go_on(state: Path, clock: ManualClock) -> None:
    """Now and then the log is brought to what runs and nodes have used; told twice, nothing is added, and
    what runs and empty GPUs used is what the GPUs did.
    """
    cluster, rows = make_cluster(state, clock, gpus=2), KeptParts()
    cluster.occupy([SLOW, FAST])
    for _ in range(3):
        clock.advance(INTERIM_S + 1)
        cluster.write_interim({("a", 1), ("b", 2)}, rows)
        cluster.write_interim({("a", 1), ("b", 2)}, rows)
    accounts = [cluster.account(job_id, token) for job_id, token in (("a", 1), ("b", 2))]
    assert [rows.joules("a"), rows.joules("b")] == pytest.approx([one.energy_j for one in accounts if one])
    totals = rows.machines["n1"].devices
    assert sum(each.runs_j for each in totals.values()) == pytest.approx(rows.joules("a") + rows.joules("b"))
    assert sum(each.idle_j for each in totals.values()) > 0
    for each in totals.values():
        assert each.energy_j == pytest.approx(each.runs_j + each.idle_j)
    note = rows.notes["a"]
    assert note.rules == {SplitRule.PROFILE}
    assert note.peak_w is not None
    assert 0 < note.peak_w < 249
    run = cluster.run_energy("a", 1)
    assert run is not None
    assert (run.energy_j, run.peak_w) == (pytest.approx(rows.joules("a")), note.peak_w)
    assert cluster.run_energy("a", 9) is None


def test_the_history_tells_who_was_with_whom(state: Path, clock: ManualClock) -> None:
    """A segment per resident and set, an interval per power of a node, without gaps, to the present."""
    cluster = make_cluster(state, clock)
    assert read_history(state, clock.now_s()) is None
    cluster.occupy([])
    clock.advance(1)
    cluster.occupy([SLOW])
    clock.advance(32)
    cluster.occupy([SLOW, FAST])
    clock.advance(31)
    history = read_history(state, clock.now_s())
    assert history is not None
    assert history == cluster.history()
    assert [
        (segment.job_id, segment.co_residents, round(segment.start_s), round(segment.end_s))
        for segment in history.residents
    ] == [("a", (), 600, 1800), ("a", ("b",), 1800, 2400), ("b", ("a",), 1800, 2400)]
    assert [
        (interval.power_w, interval.busy_gpus, round(interval.start_s), round(interval.end_s))
        for interval in history.nodes
    ] == [(98, 0, 0, 600), (149, 1, 600, 1800), (298, 1, 1800, 2400)]
    assert history.energy_j() == pytest.approx(98 * 600 + 149 * 1200 + 298 * 600)
    assert history.energy_j("n1", 300, 900) == pytest.approx(98 * 300 + 149 * 300)
    assert history.energy_j("n2") == 0
    assert history.allocated_gpu_s() == pytest.approx(1800)
    assert history.allocated_gpu_s(0, 900) == pytest.approx(300)
    shared = [segment for segment in history.residents if isinstance(segment, ResidentSegment)][1:]
    assert sum(segment.energy_j for segment in shared) == pytest.approx(249 * 600)


def test_a_changed_configuration_is_taken_over(state: Path, clock: ManualClock) -> None:
    """With other nodes or another scale the next declaration goes on from the state that is there."""
    make_cluster(state, clock).occupy([SLOW])
    clock.advance(40)
    wider = SimulatedCluster(state, [simulated_node("n1", 3)], TRUTH, time_scale=60.0, clock=clock.now_s)
    new_gpu = wider.read()[2]
    assert (new_gpu.power_w, new_gpu.energy_j, new_gpu.utilisation_pct) == (None, None, None)
    counted_j = wider.read()[0].energy_j
    wider.occupy([SLOW])
    readings = wider.read()
    assert (readings[0].energy_j, readings[0].power_w) == (counted_j, 100)
    assert readings[2].energy_j == 0
    clock.advance(10)
    assert wider.read()[2].energy_j == pytest.approx(49 * 600)


def test_uuids_are_the_same_for_ever() -> None:
    """The UUID of a simulated GPU depends on its node's name and its index only; it looks like a real one."""
    assert gpu_uuid("sim-1", 0) == "GPU-7231d74a-8a5e-5e8a-943b-2139d3fb03e1"
    assert gpu_uuid("sim-1", 0) != gpu_uuid("sim-1", 1) != gpu_uuid("sim-2", 1)
    assert str(UUID(gpu_uuid("x", 1).removeprefix("GPU-"))) in gpu_uuid("x", 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({"gpu_model": "V1000"}, "must be one of V100"), ({"gpus": 0}, "at least 1")],
)
def test_a_node_that_cannot_be_is_refused(arguments: dict[str, object], problem: str) -> None:
    """An unknown model or no GPU is an error that names the setting."""
    with pytest.raises(InvalidSettingError, match=r"simulated_nodes: .*" + problem):
        simulated_node("n1", **arguments)  # type: ignore[arg-type] # the case is the wrong argument


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_stops_time_is_refused(state: Path, scale: float) -> None:
    """Simulated time has to run."""
    with pytest.raises(InvalidSettingError, match="simulated_time_scale"):
        SimulatedCluster(state, [], TRUTH, time_scale=scale)


def test_a_model_brings_its_memory() -> None:
    """Memory is the model's unless another amount is named."""
    assert simulated_node("n", 1, "A100-80").memory_mib == 80 * 1024
    assert simulated_node("n", 1, "A100-80", 1234).memory_mib == 1234
