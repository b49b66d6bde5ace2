"""From looks at devices to the energy of each run, whatever the meter can tell."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_eaco.core.energy.accounting import (
    Consumer,
    DeviceLook,
    EnergyAccounts,
    EnergyMethod,
    EnergyPart,
    SplitRule,
    split_rule,
)

GPU = "GPU-1"
A, B = Consumer("a", 1, GPU, solo_pct=10.0), Consumer("b", 2, GPU, solo_pct=30.0)
IDLE = DeviceLook(GPU, 90.0, power_w=50.0, energy_j=4500.0)
FIRST = DeviceLook(GPU, 100.0, power_w=200.0, energy_j=5000.0)
LATER = DeviceLook(GPU, 110.0, power_w=300.0, energy_j=7600.0)


def parts_of(before: DeviceLook, after: DeviceLook, *there: Consumer) -> list[EnergyPart]:
    """Return the parts between two looks at a device that is known to draw 50 W with nobody on it."""
    accounts = EnergyAccounts()
    accounts.look([IDLE], {})
    accounts.look([replace(FIRST, power_w=50.0)], {})
    accounts.look([replace(before, at_s=before.at_s + 100.0)], {GPU: there})
    return accounts.look([replace(after, at_s=after.at_s + 100.0)], {GPU: there})


@pytest.mark.parametrize(
    ("before", "after", "total_j", "method", "partial"),
    [
        (FIRST, LATER, 2600, EnergyMethod.COUNTER, False),
        # C52: no counter, then no power either.
        (replace(FIRST, energy_j=None), replace(LATER, energy_j=None), 2500, EnergyMethod.INTEGRATED, False),
        (replace(FIRST, energy_j=None), LATER, 2500, EnergyMethod.INTEGRATED, False),
        (DeviceLook(GPU, 100.0), DeviceLook(GPU, 110.0), None, EnergyMethod.UNKNOWN, True),
        (replace(FIRST, energy_j=None), DeviceLook(GPU, 110.0), None, EnergyMethod.UNKNOWN, True),
        # C55: the counter goes back, or jumps.
        (FIRST, replace(LATER, energy_j=12.0), 2500, EnergyMethod.INTEGRATED, True),
        (FIRST, replace(LATER, energy_j=1e9), 2500, EnergyMethod.INTEGRATED, True),
        (FIRST, replace(LATER, energy_j=12.0, power_w=None), None, EnergyMethod.UNKNOWN, True),
        # Nobody looked for ten minutes: a counter still tells, two powers do not.
        (FIRST, replace(LATER, at_s=700.0), 2600, EnergyMethod.COUNTER, False),
        (replace(FIRST, energy_j=None), replace(LATER, at_s=700.0), None, EnergyMethod.UNKNOWN, True),
    ],
    ids=[
        "counter",
        "no counter",
        "counter appears",
        "nothing known",
        "power lost",
        "counter went back",
        "counter jumped",
        "counter went back and no power",
        "a long gap, by the counter",
        "a long gap, by power",
    ],
)
def test_c52_c55_the_best_known_way_is_used(
    before: DeviceLook, after: DeviceLook, total_j: float | None, method: EnergyMethod, partial: bool
) -> None:
    """The counter where it can be believed, else integrated power, else unknown: never 0, never negative,
    never a giant step.
    """
    parts = parts_of(before, after, A, B)
    assert {(part.method, part.partial) for part in parts} == {(method, partial)}
    assert {part.seconds for part in parts} == {after.at_s - before.at_s}
    if total_j is None:
        assert [part.energy_j for part in parts] == [None, None]
    else:
        # The idle draw of 50 W is halved, the rest goes 10 : 30 by the profiles.
        idle_j = 50 * (after.at_s - before.at_s)
        rest_j = max(0.0, total_j - idle_j)
        base_j = min(total_j, idle_j) / 2
        expected = [base_j + rest_j / 4, base_j + rest_j * 3 / 4]
        assert [part.energy_j for part in parts] == pytest.approx(expected)


ALONE, BUSY = replace(A, sm_pct=20.0), replace(B, sm_pct=60.0)


@pytest.mark.parametrize(
    ("there", "strangers_pct", "rule"),
    [
        ((A,), None, SplitRule.ALONE),
        ((ALONE, BUSY), None, SplitRule.SM_TIME),
        ((ALONE, B), None, SplitRule.PROFILE),
        ((replace(A, sm_pct=0.0), replace(B, sm_pct=0.0)), None, SplitRule.PROFILE),
        ((A, replace(B, solo_pct=None)), None, SplitRule.EQUAL),
        ((ALONE,), 60.0, SplitRule.SM_TIME),
        ((A,), 60.0, SplitRule.ALONE),
        ((replace(A, slices=1), replace(B, slices=3)), None, SplitRule.SLICES),
    ],
    ids=[
        "alone",
        "sm",
        "one sm unknown",
        "nobody worked",
        "one profile unknown",
        "strangers",
        "no sm",
        "MIG",
    ],
)
def test_the_rule_is_the_best_that_is_known_of_all(
    there: tuple[Consumer, ...], strangers_pct: float | None, rule: SplitRule
) -> None:
    """SM time where it is known of everybody, else the profiles, else equal parts; partitions by size."""
    assert split_rule(there, strangers_pct) is rule


def test_c54_only_the_granted_gpu_counts() -> None:
    """A job gets nothing of GPUs that it does not hold; what nobody holds is the node's idle energy."""
    accounts = EnergyAccounts()
    accounts.look([FIRST, replace(FIRST, uuid="GPU-other")], {})
    parts = accounts.look([LATER, replace(LATER, uuid="GPU-other")], {GPU: [A]})
    assert [(part.job_id, part.gpu_uuid, part.energy_j) for part in parts] == [("a", GPU, 2600)]
    other = accounts.devices["GPU-other"]
    assert (other.energy_j, other.idle_j, other.runs_j) == (2600, 2600, 0)


def test_strangers_take_their_part_of_the_work() -> None:
    """By SM time a stranger's part stays with the node: the run pays for its own work and the idle draw."""
    accounts = EnergyAccounts()
    accounts.look([IDLE], {})
    accounts.look([FIRST], {})
    (part,) = accounts.look([LATER], {GPU: [replace(A, sm_pct=30.0)]}, {GPU: 60.0})
    assert part.energy_j == pytest.approx(500 + 2100 / 3)
    assert accounts.devices[GPU].strangers_j == pytest.approx(1400)


def test_energy_of_a_gpu_that_only_strangers_use_is_not_idle() -> None:
    """It is theirs, and teaches nothing about the idle draw."""
    accounts = EnergyAccounts()
    accounts.look([FIRST], {})
    assert accounts.look([LATER], {}, {GPU: 0.0}) == []
    assert (accounts.devices[GPU].strangers_j, accounts.devices[GPU].idle_j) == (2600, 0)


def test_partitions_share_the_device_by_their_size() -> None:
    """The energy of MIG partitions is divided from their device's and says so, also of one alone."""
    small, large = (
        replace(A, gpu_uuid="MIG-1", slices=1),
        replace(B, gpu_uuid="MIG-2", slices=3),
    )
    parts = parts_of(FIRST, LATER, small, large)
    assert [(part.gpu_uuid, part.energy_j) for part in parts] == [("MIG-1", 650), ("MIG-2", 1950)]
    assert {part.method for part in parts} == {EnergyMethod.DIVIDED}
    (alone,) = parts_of(FIRST, LATER, small)
    assert (alone.energy_j, alone.method) == (2600, EnergyMethod.DIVIDED)


def test_the_record_of_a_run() -> None:
    """Joules, mean and peak draw over all its GPUs together, who was beside it, and how it was found."""
    accounts = EnergyAccounts()
    second = [replace(each, uuid="GPU-2") for each in (FIRST, LATER)]
    wide = [replace(A, gpu_uuid=GPU), replace(A, gpu_uuid="GPU-2")]
    accounts.look([FIRST, second[0]], {})
    accounts.look([LATER, second[1]], {GPU: [wide[0]], "GPU-2": [wide[1]]})
    last = [replace(each, at_s=120.0, energy_j=8600.0) for each in (LATER, second[1])]
    accounts.look(last, {GPU: [wide[0], B], "GPU-2": [wide[1]]})
    record = accounts.runs["a", 1]
    b_j = accounts.runs["b", 2].energy_j
    assert record.energy_j == pytest.approx(5200 + 2000 - b_j)
    assert record.peak_w == pytest.approx(520)
    assert record.mean_w == pytest.approx(record.energy_j / 20)
    assert (record.seconds, record.co_residents, record.partial) == (20, {"b"}, False)
    assert record.rules == {SplitRule.ALONE, SplitRule.PROFILE}


def test_a_run_that_began_before_anybody_looked_is_a_lower_bound() -> None:
    """Its parts are partial from the first to the last."""
    (part,) = parts_of(FIRST, LATER, replace(A, since_start=False))
    assert (part.energy_j, part.partial) == (2600, True)


def test_a_second_look_at_one_instant_counts_nothing() -> None:
    """No time, no energy; and the next part begins where the last one ended."""
    accounts = EnergyAccounts()
    accounts.look([FIRST], {})
    assert accounts.look([FIRST], {GPU: [A]}) == []
    (part,) = accounts.look([LATER], {GPU: [A]})
    assert part.energy_j == 2600


@given(
    steps=st.lists(st.tuples(st.floats(0.1, 60), st.floats(0, 700)), min_size=1, max_size=20),
    sm_pct=st.tuples(st.none() | st.floats(0, 100), st.floats(0, 100)),
    strangers_pct=st.none() | st.floats(0, 100),
)
def test_c53_parts_add_up_to_the_gpu(
    steps: list[tuple[float, float]], sm_pct: tuple[float | None, float], strangers_pct: float | None
) -> None:
    """Over any series of looks runs, idle and strangers are what the counter grew by; none is negative."""
    accounts = EnergyAccounts()
    there = [replace(A, sm_pct=sm_pct[0]), replace(B, sm_pct=sm_pct[1])]
    look = DeviceLook(GPU, 0.0, energy_j=0.0)
    accounts.look([look], {})
    parts: list[EnergyPart] = []
    for number, (seconds, power_w) in enumerate(steps):
        look = DeviceLook(GPU, look.at_s + seconds, energy_j=(look.energy_j or 0.0) + power_w * seconds)
        strangers = {} if strangers_pct is None else {GPU: strangers_pct}
        parts += accounts.look([look], {} if number % 3 == 0 else {GPU: there}, strangers)
    totals = accounts.devices[GPU]
    runs_j = math.fsum(part.energy_j or 0.0 for part in parts)
    assert all((part.energy_j or 0.0) >= 0 for part in parts)
    assert totals.energy_j == pytest.approx(look.energy_j, rel=1e-9, abs=1e-6)
    assert runs_j + totals.idle_j + totals.strangers_j == pytest.approx(look.energy_j, rel=1e-9, abs=1e-6)


def test_c53_c55_an_hour_of_32_residents_on_8_gpus_adds_up() -> None:
    """Residents and idle energy are the devices' true energy within 1 %, through counters that start anew,
    go back or are lost for a while, and residents that come and go.
    """
    chance = random.Random(5)
    accounts = EnergyAccounts()
    uuids = [f"GPU-{index}" for index in range(8)]
    true_j: dict[str, float] = defaultdict(float)
    offset_j: dict[str, float] = defaultdict(float)
    runs_j = 0.0
    for second in range(0, 3601, 5):
        looks = []
        for uuid in uuids:
            power_w = 60.0 + 200.0 * (1 + math.sin(second / 40 + len(true_j))) * chance.uniform(0.9, 1.1)
            true_j[uuid] += 5 * power_w if second else 0.0
            if chance.random() < 1 / 150:
                offset_j[uuid] = true_j[uuid]
            shown_j = None if second % 977 < 20 else true_j[uuid] - offset_j[uuid]
            looks.append(DeviceLook(uuid, 1000.0 + second, power_w, shown_j))
        there = {
            uuid: [
                Consumer(f"j{4 * index + slot}", 4 * index + slot + 1, uuid, sm_pct=chance.uniform(0, 40))
                for slot in range(4)
                if (second // 300 + slot + index) % 7
            ]
            for index, uuid in enumerate(uuids)
            if (second // 600 + index) % 9
        }
        runs_j += math.fsum(part.energy_j or 0.0 for part in accounts.look(looks, there))
    idle_j = math.fsum(totals.idle_j for totals in accounts.devices.values())
    assert len(accounts.runs) == 32
    assert idle_j > 0
    assert runs_j + idle_j == pytest.approx(math.fsum(true_j.values()), rel=0.01)
    for uuid, totals in accounts.devices.items():
        assert totals.energy_j == pytest.approx(true_j[uuid], rel=0.01)
        assert totals.runs_j + totals.idle_j == pytest.approx(totals.energy_j)
