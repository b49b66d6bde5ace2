"""The device model: time that is handed in, residents, work and energy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_eaco.core.energy.accounting import split_energy
from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.telemetry.device_model import DEPARTED_KEPT, UNIT_TIMES_KEPT, DeviceModel
from airflow_provider_eaco.telemetry.history import NodeInterval, ResidentSegment
from airflow_provider_eaco.telemetry.simulated import simulated_node
from tests.unit.telemetry.rig import TRUTH, occupant

START_S = 1_800_000_000.0
SLOW = occupant("a", 1, "slow")
FAST = occupant("b", 2, "fast")
A, B = ("a", 1), ("b", 2)


def make_model(time_scale: float = 10.0, hold_limit_s: float = 30.0, gpus: int = 2) -> DeviceModel:
    return DeviceModel((simulated_node("n1", gpus),), time_scale, hold_limit_s, START_S, START_S)


def begin(model: DeviceModel, key: tuple[str, int], unit: int = 1, *, wait: bool = True) -> None:
    model.begin_unit(key, unit, 1.0)
    if wait:
        model.wait_unit(key)


def test_with_nobody_the_clock_runs_and_idle_draw_is_counted() -> None:
    """Idle GPUs draw their idle power for as long as simulated time passes."""
    model = make_model()
    model.advance(START_S + 60)
    assert model.now_s == pytest.approx(600)
    assert list(model.gpu_energy_j.values()) == [pytest.approx(49 * 600)] * 2


@pytest.mark.parametrize(
    ("wall_s", "expected_s"), [(0, 0), (29.9, 0), (30, 0), (31, 10), (60, 300)], ids=lambda value: f"{value}"
)
def test_a_starting_resident_holds_the_clock_up_to_the_limit(wall_s: float, expected_s: float) -> None:
    """While a resident starts the clock stands, and runs after the hold limit whatever the resident does."""
    model = make_model()
    model.occupy([SLOW], TRUTH.of)
    model.advance(START_S + wall_s)
    assert model.now_s == pytest.approx(expected_s)


def test_the_clock_stands_again_at_the_end_of_a_unit() -> None:
    """At the instant at which a unit is done its owner is computing again: for the hold limit at most."""
    model = make_model()
    model.occupy([SLOW], TRUTH.of)
    begin(model, A)
    for wall_s, now_s in [(59, 590), (60, 600), (89, 600), (90, 600), (91, 610)]:
        model.advance(START_S + wall_s)
        assert model.now_s == pytest.approx(now_s)
    unit = model.unit_state(A)
    assert unit is not None
    assert unit.done
    assert unit.elapsed_s == pytest.approx(600)


def test_beginning_a_unit_gives_no_more_time_while_the_old_is_not_used_up() -> None:
    """Per unit the clock is held for one hold limit: from the last unit's end to the next wait."""
    model = make_model()
    model.occupy([SLOW], TRUTH.of)
    model.advance(START_S + 29)
    begin(model, A, wait=False)
    model.advance(START_S + 40)
    assert model.now_s == pytest.approx(100)


def test_a_late_report_holds_the_clock_again() -> None:
    """A resident whose time was used up counts again from its next report on."""
    model = make_model()
    model.occupy([SLOW], TRUTH.of)
    model.advance(START_S + 40)
    begin(model, A, wait=False)
    model.advance(START_S + 69)
    assert model.now_s == pytest.approx(100)


def test_work_goes_on_while_the_owner_computes_longer_than_the_limit() -> None:
    """A unit that was begun is worked on whenever the clock runs, and its device time ends with its work."""
    model = make_model()
    model.occupy([SLOW], TRUTH.of)
    begin(model, A, wait=False)
    model.advance(START_S + 1000)
    unit = model.unit_state(A)
    assert unit is not None
    assert unit.done
    assert unit.elapsed_s == pytest.approx(600)
    assert model.now_s == pytest.approx(9700)


def test_a_successor_takes_the_place_at_the_same_instant() -> None:
    """Who leaves and who comes in one declaration change places without a gap in simulated time."""
    model = make_model()
    model.occupy([SLOW], TRUTH.of)
    begin(model, A)
    model.advance(START_S + 70)
    model.occupy([FAST], TRUTH.of)
    model.advance(START_S + 80)
    assert model.now_s == pytest.approx(600)
    left = [segment for segment in model.closed if isinstance(segment, ResidentSegment)]
    assert [(segment.job_id, segment.end_s) for segment in left] == [("a", pytest.approx(600))]


def test_residents_on_different_gpus_do_not_slow_each_other() -> None:
    """Sets of one node have nothing to do with each other but the clock."""
    model = make_model()
    model.occupy([SLOW, occupant("b", 2, "fast", (1,))], TRUTH.of)
    begin(model, A)
    begin(model, B)
    model.advance(START_S + 20)
    assert [model.residents[key].rate for key in (A, B)] == [1.0, 1.0]


def test_declaring_the_same_again_changes_nothing() -> None:
    """The declaration of every heartbeat leaves units, accounts and history as they are."""
    model = make_model()
    model.occupy([SLOW, FAST], TRUTH.of)
    begin(model, A)
    model.advance(START_S + 45)
    before = repr(model)
    model.occupy([FAST, SLOW, FAST], TRUTH.of)
    assert repr(model) == before


def test_partly_shared_gpus_are_refused_and_change_nothing() -> None:
    """Residents share all of their GPUs or none; a declaration that says otherwise is refused as a whole."""
    model = make_model()
    model.occupy([SLOW], TRUTH.of)
    before = repr(model)
    with pytest.raises(ValueError, match="overlap"):
        model.occupy([SLOW, occupant("b", 2, "fast", (0, 1))], TRUTH.of)
    assert repr(model) == before


@pytest.mark.parametrize(
    "stranger",
    [
        occupant("c", 3, gpus=(9,)),
        occupant("c", 3, gpus=()),
        Occupant("c", 3, "slow", type(SLOW.placement)("elsewhere", SLOW.placement.gpu_uuids), None),
    ],
    ids=["another GPU", "no GPU", "another node"],
)
def test_jobs_of_other_machines_are_left_out(stranger: Occupant) -> None:
    """Who holds no GPU of these nodes is no resident here."""
    model = make_model()
    model.occupy([SLOW, stranger], TRUTH.of)
    assert list(model.residents) == [A]


def test_a_wall_clock_that_is_set_back_does_not_stop_the_model() -> None:
    """A little disorder of instants is nothing; a clock that was set back is followed."""
    model = make_model()
    model.advance(START_S + 100)
    model.advance(START_S + 90)
    assert model.now_s == pytest.approx(1000)
    model.occupy([SLOW], TRUTH.of)
    model.advance(START_S - 3600)
    model.advance(START_S - 3600 + 29)
    assert model.now_s == pytest.approx(1000)
    model.advance(START_S - 3600 + 31)
    assert model.now_s == pytest.approx(1010)


def test_what_is_kept_of_the_past_is_bounded() -> None:
    """Neither many jobs nor many units let the state grow without end."""
    model = make_model()
    for token in range(DEPARTED_KEPT + 20):
        model.occupy([occupant(f"j{token}", token)], TRUTH.of)
    assert len(model.departed) == DEPARTED_KEPT
    assert "j0" not in {key[0] for key in model.departed}
    key = next(iter(model.residents))
    for unit in range(1, UNIT_TIMES_KEPT + 20):
        begin(model, key, unit)
        model.advance(model.wall_s + 60)
    assert model.residents[key].units_done == UNIT_TIMES_KEPT + 19
    assert len(model.residents[key].unit_times_s) == UNIT_TIMES_KEPT


def test_a_new_configuration_keeps_counters_and_units() -> None:
    """GPUs that stay go on counting, and residents that are declared again go on with their units."""
    model = make_model()
    model.occupy([SLOW], TRUTH.of)
    begin(model, A)
    model.advance(START_S + 30)
    energy_j = dict(model.gpu_energy_j)
    model.reconfigure((simulated_node("n1", 3),), 20.0, 30.0)
    model.occupy([SLOW], TRUTH.of)
    assert {uuid: model.gpu_energy_j[uuid] for uuid in energy_j} == energy_j
    model.advance(START_S + 45)
    unit = model.unit_state(A)
    assert unit is not None
    assert unit.done
    assert model.now_s == pytest.approx(600)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["occupy", "begin", "wait", "pass"]),
        st.sets(st.integers(0, 4)),
        st.floats(0.001, 500),
    ),
    max_size=25,
)
JOBS = [
    occupant("a", 1, "slow", (0, 1, 2)),
    occupant("b", 2, "fast", (0, 1, 2)),
    occupant("c", 3, "unheard-of", (0, 1, 2)),
    occupant("d", 4, "slow", (3,)),
    occupant("e", 5, "fast", (3,)),
]


def play(model: DeviceModel, steps: Sequence[tuple[str, set[int], float]], slices: int) -> None:
    wall_s = model.wall_s
    for number, (step, who, seconds) in enumerate(steps):
        jobs = [JOBS[index] for index in sorted(who)]
        if step == "occupy":
            model.occupy(jobs, TRUTH.of)
        for job in jobs:
            if step == "begin":
                model.begin_unit((job.job_id, job.token), number, seconds / 50)
            elif step == "wait":
                model.wait_unit((job.job_id, job.token))
        for part in range(1, slices + 1):
            model.advance(wall_s + seconds * part / slices)
        wall_s += seconds


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_c53_energy_adds_up_whatever_happens(steps: list[tuple[str, set[int], float]]) -> None:
    """Accounts of all jobs and idle draw add up to the counters of the GPUs; the history says the same, of
    work as well.
    """
    model = make_model(gpus=5)
    play(model, steps, 1)
    total_j = math.fsum(model.gpu_energy_j.values())
    segments = [*model.closed, *model.present_segments()]
    nodes_j = math.fsum(segment.energy_j for segment in segments if isinstance(segment, NodeInterval))
    jobs_j = math.fsum(segment.energy_j for segment in segments if isinstance(segment, ResidentSegment))
    accounts = [*model.residents.values(), *model.departed.values()]
    idle_j = math.fsum(
        49.0 * (segment.gpus - segment.busy_gpus) * (segment.end_s - segment.start_s)
        for segment in segments
        if isinstance(segment, NodeInterval)
    )
    assert all(segment.end_s > segment.start_s for segment in model.closed)
    assert nodes_j == pytest.approx(total_j, rel=1e-9, abs=1e-6)
    assert math.fsum(one.energy_j for one in accounts) == pytest.approx(jobs_j, rel=1e-9, abs=1e-6)
    works_s = [segment.work_s for segment in segments if isinstance(segment, ResidentSegment)]
    assert math.fsum(one.work_s for one in accounts) == pytest.approx(math.fsum(works_s), rel=1e-9, abs=1e-6)
    assert jobs_j + idle_j == pytest.approx(total_j, rel=1e-9, abs=1e-6)
    assert all(energy_j >= 0 for energy_j in model.gpu_energy_j.values())


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, slices=st.integers(2, 7))
def test_how_often_it_is_looked_at_changes_nothing(
    steps: list[tuple[str, set[int], float]], slices: int
) -> None:
    """Advancing in one stride or in many gives the same time, work and energy."""
    once, often = make_model(gpus=5), make_model(gpus=5)
    play(once, steps, 1)
    play(often, steps, slices)
    # The wall clock of 2027 resolves 0.24 microseconds; at scale 10 this is the tolerance of one event.
    assert often.now_s == pytest.approx(once.now_s, abs=1e-3)
    assert list(often.gpu_energy_j.values()) == pytest.approx(list(once.gpu_energy_j.values()), abs=1.0)
    assert [one.units_done for one in often.residents.values()] == [
        one.units_done for one in once.residents.values()
    ]


@given(
    power_w=st.floats(1, 5000),
    idle_w=st.floats(0, 5000),
    weights=st.lists(st.floats(0, 100), min_size=1, max_size=8),
)
def test_c53_parts_of_power_add_up(power_w: float, idle_w: float, weights: list[float]) -> None:
    """The residents' parts are the whole draw, none is negative, and who uses more has no smaller part."""
    parts = split_energy(power_w, idle_w, [1.0] * len(weights), weights)
    assert math.fsum(parts) == pytest.approx(power_w, rel=1e-9)
    assert all(part >= -1e-9 * power_w for part in parts)
    ranked = [part for _, part in sorted(zip(weights, parts, strict=True))]
    assert all(low <= high + 1e-9 * power_w for low, high in itertools.pairwise(ranked))


def test_idle_draw_is_shared_equally_and_the_rest_by_utilisation() -> None:
    """49 W of idle draw are halved; the 200 W above it go 10 : 30; without utilisation all is halved."""
    assert split_energy(249, 49, [1, 1], [10, 30]) == pytest.approx([24.5 + 50, 24.5 + 150])
    assert split_energy(249, 49, [1, 1], [0, 0]) == pytest.approx([124.5, 124.5])
    assert split_energy(40, 49, [1, 1], [10, 30]) == pytest.approx([20, 20])
