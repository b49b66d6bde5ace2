"""Memory of shared GPUs: who grew is told and ended, who ran out comes back alone; neighbours stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.pool import MemoryGrowth
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.ports import RunMeter
from airflow_provider_eaco.provider.memory_watch import MemoryWatch
from airflow_provider_eaco.provider.services import NodeMeter, NoWorkers
from tests.builders import make_pair, make_solo
from tests.unit.provider.executor.lane_rig import LaneRig, parts_in_memory

GIB = 1024


class Seen:
    """A meter that saw so much memory of each job."""

    def __init__(self) -> None:
        self.peak_mib: dict[str, int | None] = {}

    def run_meter(self, job_id: str, token: int) -> RunMeter | None:
        return RunMeter(memory_peak_mib=self.peak_mib[job_id]) if job_id in self.peak_mib else None


class AllHaveWorkers(NoWorkers):
    """Every node is another machine."""

    def has_worker(self, node: str) -> bool:
        return True


class Pair:
    """Two tasks of 4 GiB each that share both GPUs of one node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, growth: MemoryGrowth) -> None:
        alone = [
            make_solo(family, gpu_model="V100", gpu_count=2, power_w=300.0, checkpoints=True)
            for family in "AB"
        ]
        pair = make_pair({"A": 1.02, "B": 1.02}, gpu_model="V100", gpu_count=2, power_w=310.0)
        book = ProfileBook({each.key: each for each in alone}, {pair.key: pair})
        self.seen = Seen()
        parts = parts_in_memory()
        parts.profiles._book = book
        meter = NodeMeter(parts.meter.telemetry, runs=self.seen)
        self.rig = LaneRig(monkeypatch, policy="eaco", parts=replace(parts, meter=meter))
        settings = self.rig.services.settings
        pool = replace(settings.pools[0], memory_growth=growth)
        object.__setattr__(settings, "pools", (pool,))
        for job_id, family in (("j1", "A"), ("j2", "B")):
            request = GpuRequest(2, family, gpu_memory_mib=4 * GIB, share=Share.ALWAYS, max_stretch=None)
            self.rig.queue(job_id, f"task-{job_id}", request=request)
            self.rig.beat()
        assert [self.rig.phase(job_id) for job_id in ("j1", "j2")] == ["running", "running"]

    def look(self) -> None:
        self.rig.lane.show(self.rig.lane.memory.look)

    def killed(self) -> list[str]:
        return [reference.split(":")[-1] for reference in self.rig.dispatcher.killed]

    def events(self, job_id: str) -> list[str]:
        return [event.event for event in self.rig.decisions.events if event.job_id == job_id]

    def peak_of(self, family: str) -> int | None:
        solo = self.rig.services.profiles.book().solo_of(family, "V100", 2)
        return None if solo is None else solo.memory_peak_mib


@pytest.fixture(params=[MemoryGrowth.STOP])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(monkeypatch, request.param)


def test_c36_who_grows_beyond_its_request_is_told_once(pair: Pair) -> None:
    """Within the pool's margin it goes on; nobody else is touched."""
    pair.seen.peak_mib = {"j1": 4 * GIB + 100, "j2": 4 * GIB}
    pair.look()
    pair.look()
    assert pair.killed() == []
    assert pair.events("j1").count("memory_grew") == 1
    assert "memory_grew" not in pair.events("j2")


def test_c36_who_grows_beyond_the_margin_is_ended_and_never_the_neighbour(pair: Pair) -> None:
    """The one that took the most goes, once; Airflow is told why; the next run is admitted with as much."""
    pair.seen.peak_mib = {"j1": 6 * GIB, "j2": 12 * GIB}
    pair.look()
    pair.look()
    assert pair.killed() == ["j2"]
    assert "memory_exceeded" in pair.events("j2")
    assert pair.peak_of("B") == 12 * GIB
    pair.rig.become("j2", "failed")
    pair.rig.dispatcher.end("j2", exit_code=143)
    pair.rig.beat()
    assert pair.rig.phase("j1") == "running"
    (ended,) = [info for task, event, info in pair.rig.host.ended if task == "task-j2"]
    assert ended is not None
    assert "admitted with 4096 MiB" in ended


def test_c36_alone_nobody_pays_and_nobody_is_ended(pair: Pair) -> None:
    """A task that shares with nobody is told only."""
    pair.rig.become("j2", "success")
    pair.rig.dispatcher.end("j2")
    pair.rig.beat()
    pair.seen.peak_mib = {"j1": 12 * GIB}
    pair.look()
    assert pair.killed() == []
    assert "memory_grew" in pair.events("j1")


@pytest.mark.parametrize("pair", [MemoryGrowth.WARN], indirect=True)
def test_c36_a_pool_may_only_warn(pair: Pair) -> None:
    """With ``memory_growth`` = warn nobody is ended."""
    pair.seen.peak_mib = {"j1": 12 * GIB, "j2": 4 * GIB}
    pair.look()
    assert pair.killed() == []
    assert "memory_grew" in pair.events("j1")


def test_c36_unknown_use_is_no_offence(pair: Pair) -> None:
    """What no meter has seen is unknown, not too much."""
    pair.seen.peak_mib = {"j1": None}
    pair.look()
    assert pair.killed() == []
    assert "memory_grew" not in pair.events("j1")


def test_c38_who_ran_out_waits_and_runs_alone(pair: Pair) -> None:
    """Its neighbour runs on, its family is taken to need more than was left beside it, and it does not share
    again though its request would let it.
    """
    pair.seen.peak_mib = {"j2": 5 * GIB}
    token = next(lease.token for lease in pair.rig.ledger.view().leases if lease.job_id == "j2")
    key = pair.rig.lane.groups.of_job("j2").key  # type: ignore[union-attr] # it runs
    pair.rig.progress[key] = {"v": 1, "try_number": 1, "token": token, "units_done": 0, "out_of_memory": 1}
    pair.rig.become("j2", "up_for_reschedule")
    pair.rig.dispatcher.end("j2")
    pair.rig.beat()
    assert pair.rig.phase("j1") == "running"
    assert "out_of_memory" in pair.events("j2")
    usable_mib = pair.rig.ledger.view().nodes[0].gpus[0].memory_usable_mib
    assert usable_mib is not None
    assert pair.peak_of("B") == usable_mib - 4 * GIB + 1
    request = GpuRequest(2, "B", gpu_memory_mib=4 * GIB, share=Share.ALWAYS, max_stretch=None)
    pair.rig.queue("j2", "task-j2", request=request)
    pair.rig.beat()
    assert pair.rig.phase("j2") == "waiting"
    pair.rig.become("j1", "success")
    pair.rig.dispatcher.end("j1")
    pair.rig.beat()
    assert pair.rig.phase("j2") == "running"


def test_c36_growth_on_a_node_with_a_worker_is_seen_by_its_reports(pair: Pair) -> None:
    """What its node has told of living runs counts as what a meter of this machine sees."""
    tokens = {lease.job_id: lease.token for lease in pair.rig.ledger.view().leases}
    far = NodeMeter(pair.rig.meter, peaks_mib=lambda: {tokens["j2"]: 12 * GIB})
    services = replace(pair.rig.services, meters=(far,), workers=AllHaveWorkers())
    watch = MemoryWatch(services, pair.rig.lane.groups)
    pair.rig.lane.show(watch.look)
    assert pair.killed() == ["j2"]
    assert "memory_grew" not in pair.events("j1")
