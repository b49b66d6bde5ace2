"""From readings to the energy of each job, whatever the meter can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.telemetry.sampler import EnergySampler
from tests.unit.telemetry.rig import occupant

A, B = occupant("a", 1, "slow"), occupant("b", 2, "fast")
GPU = A.placement.gpu_uuids[0]
FIRST = GpuReading(GPU, 100.0, power_w=200.0, energy_j=5000.0)
LATER = GpuReading(GPU, 110.0, power_w=300.0, energy_j=7600.0)


def parts_of(before: GpuReading, after: GpuReading) -> list[EnergyPart]:
    sampler = EnergySampler({GPU: 50.0})
    assert sampler.sample([before], [A, B]) == []
    return sampler.sample([after], [A, B], {"slow": 10.0, "fast": 30.0})


@pytest.mark.parametrize(
    ("before", "after", "total_j", "method", "partial"),
    [
        (FIRST, LATER, 2600, EnergyMethod.COUNTER, False),
        # C52: no counter, then no power either.
        (replace(FIRST, energy_j=None), replace(LATER, energy_j=None), 2500, EnergyMethod.INTEGRATED, False),
        (replace(FIRST, energy_j=None), LATER, 2500, EnergyMethod.INTEGRATED, False),
        (GpuReading(GPU, 100.0), GpuReading(GPU, 110.0), None, EnergyMethod.UNKNOWN, True),
        (replace(FIRST, energy_j=None), GpuReading(GPU, 110.0), None, EnergyMethod.UNKNOWN, True),
        # C55: the counter goes back, or jumps.
        (FIRST, replace(LATER, energy_j=12.0), 2500, EnergyMethod.INTEGRATED, True),
        (FIRST, replace(LATER, energy_j=1e9), 2500, EnergyMethod.INTEGRATED, True),
        (FIRST, replace(LATER, energy_j=12.0, power_w=None), None, EnergyMethod.UNKNOWN, True),
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
    ],
)
def test_c52_c55_the_best_known_way_is_used(
    before: GpuReading, after: GpuReading, total_j: float | None, method: EnergyMethod, partial: bool
) -> None:
    """The counter where it can be believed, else integrated power, else unknown: never 0, never negative,
    never a giant step.
    """
    parts = parts_of(before, after)
    assert [(part.job_id, part.token, part.gpu_uuid, part.seconds) for part in parts] == [
        ("a", 1, GPU, 10),
        ("b", 2, GPU, 10),
    ]
    assert {(part.method, part.partial) for part in parts} == {(method, partial)}
    if total_j is None:
        assert [part.energy_j for part in parts] == [None, None]
    else:
        # 500 J of idle draw are halved, the rest goes 10 : 30.
        rest_j = total_j - 500
        assert [part.energy_j for part in parts] == pytest.approx([250 + rest_j / 4, 250 + rest_j * 3 / 4])


def test_c54_only_the_granted_gpu_counts() -> None:
    """A job gets nothing of GPUs that it does not hold, and one nobody holds gives nobody anything."""
    sampler = EnergySampler()
    other = replace(FIRST, uuid="GPU-other")
    sampler.sample([FIRST, other], [A])
    parts = sampler.sample([LATER, replace(LATER, uuid="GPU-other")], [A])
    assert [(part.job_id, part.gpu_uuid, part.energy_j) for part in parts] == [("a", GPU, 2600)]


def test_energy_belongs_to_those_who_were_there() -> None:
    """What was used before a change belongs to the residents before it."""
    sampler = EnergySampler()
    sampler.sample([FIRST], [A])
    parts = sampler.sample([LATER], [B])
    assert [part.job_id for part in parts] == ["a"]
    after = replace(LATER, at_s=120.0, energy_j=8600.0)
    assert [(part.job_id, part.energy_j) for part in sampler.sample([after], [])] == [("b", 1000)]


@pytest.mark.parametrize("known", [None, {"slow": 10.0}, {"slow": 10.0, "fast": None}], ids=str)
def test_an_unknown_profile_shares_equally(known: dict[str, float | None] | None) -> None:
    """Where a resident's utilisation is not known nothing is guessed: all share alike."""
    sampler = EnergySampler({GPU: 50.0})
    sampler.sample([FIRST], [A, B])
    parts = sampler.sample([LATER], [A, B], known)
    assert [part.energy_j for part in parts] == [1300, 1300]


def test_a_second_look_at_one_instant_counts_nothing() -> None:
    """No time, no energy; and the next part begins where the last one ended."""
    sampler = EnergySampler()
    sampler.sample([FIRST], [A])
    assert sampler.sample([FIRST], [A]) == []
    (part,) = sampler.sample([LATER], [A])
    assert part.energy_j == 2600


@given(
    steps=st.lists(st.tuples(st.floats(0.1, 60), st.floats(0, 700)), min_size=1, max_size=20),
    idle_w=st.none() | st.floats(0, 100),
    weights=st.fixed_dictionaries({"slow": st.floats(0, 100), "fast": st.none() | st.floats(0, 100)}),
)
def test_c53_parts_add_up_to_the_gpu(
    steps: list[tuple[float, float]], idle_w: float | None, weights: dict[str, float | None]
) -> None:
    """Over any series of samples the residents' parts are what the GPU's counter has grown by."""
    sampler = EnergySampler({GPU: idle_w})
    reading = GpuReading(GPU, 0.0, energy_j=0.0)
    sampler.sample([reading], [A, B])
    total_j = 0.0
    for seconds, power_w in steps:
        reading = GpuReading(
            GPU, reading.at_s + seconds, energy_j=(reading.energy_j or 0.0) + power_w * seconds
        )
        total_j += sum(part.energy_j or 0.0 for part in sampler.sample([reading], [A, B], weights))
    assert total_j == pytest.approx(reading.energy_j, rel=1e-9, abs=1e-6)
