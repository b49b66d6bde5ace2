"""The simulated cluster: progress, power and sleep follow the truth and nothing else."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.energy.configuration import SetPerformance
from airflow_provider_eaco.core.model.node_power import NodePower, SleepRule
from airflow_provider_eaco.core.model.profile import FamilySet, PowerScope
from airflow_provider_eaco.simulator.clock import VirtualClock
from airflow_provider_eaco.simulator.cluster import OutOfMemoryError, SteeringError, VirtualCluster
from airflow_provider_eaco.simulator.recording import Recording
from airflow_provider_eaco.simulator.running import Happening
from airflow_provider_eaco.simulator.trace import TraceJob

GPUS = (0, 1)


class HalfSpeed:
    """Alone 100 W at full speed, in pairs 150 W at half speed; three do not fit. A limit takes a fifth
    of the speed.
    """

    families = ("a", "b")
    gpu_model = "V100"
    scope = PowerScope.NODE
    base_w = 10.0
    free_gpu_w = 5.0
    asleep_w = 1.0
    limits_w = (90.0,)

    def performance(
        self, families: FamilySet, gpus: int, limit_w: float | None = None
    ) -> SetPerformance | None:
        known = {1: SetPerformance(100.0, (1.0,)), 2: SetPerformance(150.0, (0.5, 0.5))}
        if limit_w is not None:
            known = {1: SetPerformance(60.0, (0.8,)), 2: SetPerformance(90.0, (0.4, 0.4))}
        return known.get(len(families))

    def utilisation_pct(self, families: FamilySet) -> float:
        return 50.0


class Rig:
    """A cluster of one node with two GPUs, and what it has recorded."""

    def __init__(self, sleep: SleepRule | None = None, epochs: bool = True) -> None:
        self.recording = Recording()
        self.cluster = VirtualCluster(HalfSpeed(), ["n"], 2, sleep, self.recording, epochs=epochs)

    def place(self, job_id: str, work_s: float, now_s: float) -> bool:
        return self.cluster.place(TraceJob(job_id, "a", 2, 0.0, work_s), "n", GPUS, now_s)

    def pass_until(self, until_s: float) -> list[tuple[float, Happening, str]]:
        """Let time go by; jobs that end leave at once."""
        seen = []
        while (at_s := self.cluster.next_event_s()) is not None and at_s <= until_s:
            for event in self.cluster.due(at_s):
                seen.append((at_s, event.happening, event.subject))
                if event.happening is Happening.END:
                    self.cluster.remove(event.subject, at_s)
        return seen

    def runs(self, job_id: str) -> list[tuple[float, float, float]]:
        return [(run.start_s, run.end_s, run.rate) for run in self.recording.runs if run.job_id == job_id]

    def nodes(self, until_s: float) -> list[tuple[float, float, NodePower, float]]:
        self.cluster.close(until_s)
        return [(row.start_s, row.end_s, row.state, row.power_w) for row in self.recording.nodes]


def test_a_survivor_runs_at_full_speed_again() -> None:
    """When a partner ends, the other goes on as alone (a known fault of public simulators)."""
    rig = Rig(epochs=False)
    rig.place("long", 1_000.0, 0.0)
    rig.place("short", 100.0, 100.0)
    assert [seen for seen in rig.pass_until(1e6) if seen[1] is Happening.END] == [
        (300.0, Happening.END, "short"),
        (1_100.0, Happening.END, "long"),
    ]
    assert rig.runs("long") == [(0.0, 100.0, 1.0), (100.0, 300.0, 0.5), (300.0, 1_100.0, 1.0)]
    assert rig.nodes(1_200.0) == [
        (0.0, 100.0, NodePower.ACTIVE, 110.0),
        (100.0, 300.0, NodePower.ACTIVE, 160.0),
        (300.0, 1_100.0, NodePower.ACTIVE, 110.0),
        (1_100.0, 1_200.0, NodePower.IDLE, 20.0),
    ]


def test_epochs_end_at_equal_parts_of_the_work() -> None:
    """Five epochs at least; sharing moves their ends, the last is the end of the job."""
    rig = Rig()
    rig.place("a", 100.0, 0.0)
    first = rig.pass_until(30.0)
    rig.place("b", 1_000.0, 30.0)
    seen = [(at_s, kind) for at_s, kind, job_id in [*first, *rig.pass_until(1e6)] if job_id == "a"]
    assert seen == [
        (20.0, Happening.EPOCH),
        (50.0, Happening.EPOCH),
        (90.0, Happening.EPOCH),
        (130.0, Happening.EPOCH),
        (170.0, Happening.END),
    ]


def test_who_comes_back_stands_still_for_thirty_seconds() -> None:
    """A restart makes no progress, is written as such, and slows the partner as if it ran."""
    rig = Rig(epochs=False)
    rig.place("moved", 100.0, 0.0)
    rig.cluster.remove("moved", 40.0)
    rig.place("partner", 1_000.0, 100.0)
    rig.place("moved", 100.0, 100.0)
    rig.pass_until(1e6)
    assert rig.runs("moved") == [(0.0, 40.0, 1.0), (100.0, 130.0, 0.0), (130.0, 250.0, 0.5)]
    assert rig.runs("partner")[0] == (100.0, 250.0, 0.5)


def test_a_sleeping_node_wakes_before_the_job_starts() -> None:
    """Idle for 300 s, asleep, 120 s of waking at idle power, then the job."""
    rig = Rig(sleep=SleepRule())
    rig.pass_until(1_000.0)
    assert rig.place("a", 100.0, 1_000.0) is False
    assert rig.place("b", 100.0, 1_060.0) is False
    rig.pass_until(2_000.0)
    assert rig.runs("a") == [(1_120.0, 1_320.0, 0.5)]
    assert rig.nodes(1_700.0) == [
        (0.0, 300.0, NodePower.IDLE, 20.0),
        (300.0, 1_000.0, NodePower.ASLEEP, 1.0),
        (1_000.0, 1_120.0, NodePower.WAKING, 20.0),
        (1_120.0, 1_320.0, NodePower.ACTIVE, 160.0),
        (1_320.0, 1_620.0, NodePower.IDLE, 20.0),
        (1_620.0, 1_700.0, NodePower.ASLEEP, 1.0),
    ]


def test_a_job_that_leaves_a_waking_node_never_ran() -> None:
    """Who is taken away before the node is up leaves nothing behind, and the node becomes idle."""
    rig = Rig(sleep=SleepRule())
    rig.pass_until(1_000.0)
    rig.place("a", 100.0, 1_000.0)
    rig.cluster.remove("a", 1_050.0)
    rig.pass_until(1_200.0)
    assert rig.runs("a") == []
    assert rig.nodes(1_200.0)[-1] == (1_120.0, 1_200.0, NodePower.IDLE, 20.0)


def test_what_does_not_fit_changes_nothing() -> None:
    """Out of memory hits the newcomer; who was there goes on."""
    rig = Rig(epochs=False)
    rig.place("a", 100.0, 0.0)
    rig.place("b", 100.0, 0.0)
    with pytest.raises(OutOfMemoryError, match="c does not fit"):
        rig.place("c", 100.0, 50.0)
    rig.pass_until(1e6)
    assert rig.runs("a") == [(0.0, 200.0, 0.5)]


def test_ends_come_before_epochs_of_one_instant() -> None:
    """Of what happens at one instant, ends are told first, so that who waits finds room."""
    rig = Rig()
    rig.place("epoch", 1_000.0, 0.0)
    rig.cluster.place(TraceJob("end", "b", 2, 0.0, 200.0), "n", GPUS, 0.0)
    at_once = [kind for at_s, kind, _ in rig.pass_until(1e6) if at_s == 400.0]
    assert at_once == [Happening.END, Happening.EPOCH]


def test_time_never_goes_back() -> None:
    """The clock refuses an instant before the present one."""
    clock = VirtualClock()
    clock.move_to(5.0)
    with pytest.raises(ValueError, match="before the present"):
        clock.move_to(4.0)
    assert clock.now_s() == 5.0


def test_a_limit_holds_until_the_last_has_left() -> None:
    """A power limit changes progress and draw at once, stays with the set, and falls when nobody is there."""
    rig = Rig(epochs=False)
    rig.place("first", 100.0, 0.0)
    rig.cluster.limit_power("n", GPUS, 90.0, 50.0)
    rig.place("second", 40.0, 100.0)
    rig.pass_until(1e6)
    assert rig.runs("first") == [(0.0, 50.0, 1.0), (50.0, 100.0, 0.8), (100.0, 125.0, 0.4)]
    assert rig.runs("second") == [(100.0, 125.0, 0.4), (125.0, 162.5, 0.8)]
    assert [(row.start_s, row.end_s, row.limit_w) for row in rig.recording.limits] == [(50.0, 162.5, 90.0)]
    rig.place("third", 10.0, 200.0)
    rig.pass_until(1e6)
    assert rig.runs("third") == [(200.0, 210.0, 1.0)]
    assert [row[3] for row in rig.nodes(300.0)] == [110.0, 70.0, 100.0, 70.0, 20.0, 110.0, 20.0]


def test_a_limit_can_be_lifted() -> None:
    """Without a limit the set runs as before."""
    rig = Rig(epochs=False)
    rig.place("job", 100.0, 0.0)
    rig.cluster.limit_power("n", GPUS, 90.0, 0.0)
    rig.cluster.limit_power("n", GPUS, None, 50.0)
    rig.pass_until(1e6)
    assert rig.runs("job") == [(0.0, 50.0, 0.8), (50.0, 110.0, 1.0)]


@pytest.mark.parametrize(
    ("gpus", "limit_w", "said"),
    [
        pytest.param((0,), 90.0, "nobody holds GPUs", id="not-a-set"),
        pytest.param(GPUS, 80.0, "a power limit of 80 W; known are 90", id="not-a-level"),
    ],
)
def test_a_limit_that_cannot_be(gpus: tuple[int, ...], limit_w: float, said: str) -> None:
    """Only sets that are held have a limit, and only one that the boards know."""
    rig = Rig()
    rig.place("job", 100.0, 0.0)
    with pytest.raises(SteeringError, match=said):
        rig.cluster.limit_power("n", gpus, limit_w, 0.0)


def test_a_node_sleeps_and_wakes_as_it_is_told() -> None:
    """Without a rule of its own a node stays idle until it is told, and takes its time to wake."""
    rig = Rig(SleepRule(idle_s=None))
    assert rig.pass_until(10_000.0) == []
    rig.cluster.sleep("n", 10_000.0)
    rig.cluster.sleep("n", 10_010.0)
    rig.cluster.wake("n", 20_000.0)
    rig.cluster.sleep("n", 20_010.0)
    rig.cluster.wake("n", 20_020.0)
    assert rig.pass_until(30_000.0) == [(20_120.0, Happening.NODE, "n")]
    assert [row[:3] for row in rig.nodes(30_000.0)] == [
        (0.0, 10_000.0, NodePower.IDLE),
        (10_000.0, 20_000.0, NodePower.ASLEEP),
        (20_000.0, 20_120.0, NodePower.WAKING),
        (20_120.0, 30_000.0, NodePower.IDLE),
    ]


def test_nobody_is_put_to_sleep_under_a_job() -> None:
    """A node that is held, or that wakes for somebody, cannot be put to sleep."""
    rig = Rig(SleepRule(idle_s=None))
    rig.cluster.sleep("n", 0.0)
    assert not rig.place("job", 100.0, 10.0)
    with pytest.raises(SteeringError, match="while jobs hold GPUs of it"):
        rig.cluster.sleep("n", 20.0)
