"""Blocks of GPUs, and the cluster in time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import DemandCurve, PoolSettings
from airflow_provider_eaco.core.model.reservation import Reservation
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.blocks import block_table, free_blocks, largest_block
from airflow_provider_eaco.core.policy.demand import demand_reservations
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.forecast import Forecast
from airflow_provider_eaco.core.policy.timetable import Timetable
from tests.builders import (
    NOW_S,
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_pair,
    make_progress,
    make_resident,
    make_snapshot,
    make_solo,
)

BOOK = make_book(
    *(make_solo("A", "V100", gpus, unit_s=100.0, units_total=36) for gpus in (1, 2, 4, 8)),
    make_solo("B", "V100", 4, unit_s=100.0, units_total=72),
    make_pair({"A": 1.5, "B": 1.25}, "V100", 4),
)


@pytest.mark.parametrize(
    ("gpus", "free", "strict", "taken"),
    [
        pytest.param(1, 0b1111_0100, True, 0b0000_0100, id="the-smallest-block-first"),
        pytest.param(2, 0b1111_0110, True, 0b0011_0000, id="neighbours-that-are-no-block-do-not-count"),
        pytest.param(2, 0b0000_0110, True, 0, id="no-block-no-place"),
        pytest.param(2, 0b0000_0110, False, 0b0000_0110, id="gathered-where-blocks-are-only-preferred"),
        pytest.param(3, 0b1111_0111, True, 0b0111_0000, id="three-lie-in-a-block-of-four"),
        pytest.param(5, 0b0111_1111, False, 0b0101_1111 & 0b0111_1111, id="gathered-from-the-smallest"),
        pytest.param(8, 0b1111_1111, True, 0b1111_1111, id="the-whole-node"),
        pytest.param(4, 0b0000_0111, False, 0, id="too-few"),
    ],
)
def test_a_block_is_taken_from_the_smallest_that_holds_it(
    gpus: int, free: int, strict: bool, taken: int
) -> None:
    """Strict tables give aligned blocks or nothing; others prefer them."""
    found = block_table(gpus, strict)[free]
    if strict or gpus != 5:
        assert found == taken
    assert found & ~free == 0
    assert found.bit_count() == (gpus if taken else 0)


@given(st.integers(0, 2**16 - 1))
def test_free_blocks_are_a_partition_into_aligned_powers_of_two(free: int) -> None:
    """Every free GPU is in exactly one block, and no two blocks could be joined to a larger one."""
    blocks = free_blocks(free)
    covered = 0
    for size, offset in blocks:
        mask = ((1 << size) - 1) << offset
        assert size & (size - 1) == 0
        assert offset % size == 0
        assert covered & mask == 0
        covered |= mask
        assert (size, offset ^ size) not in blocks
    assert covered == free
    assert largest_block(free) == max((size for size, _ in blocks), default=0)


def timetable(snapshot: ClusterSnapshot, *reservations: Reservation) -> Timetable:
    """The timetable of the snapshot."""
    facts = CycleFacts(snapshot)
    return Timetable(snapshot, reservations, Forecast(snapshot, facts))


def test_a_job_starts_when_the_running_ones_are_predicted_to_end() -> None:
    """The earliest start is the end that profile, progress and time since the grant predict."""
    running = make_job("r", "A", 4, progress=make_progress(done=10, total=36))
    node = hold_gpus(make_node(), make_resident(running, granted_s=NOW_S - 1050))
    table = timetable(make_snapshot(node, profiles=BOOK))
    four = table.first_slot(make_job("four", "A", 4))
    eight = table.first_slot(make_job("eight", "A", 8))
    assert four is not None
    assert (four.start_s, four.mask) == (NOW_S, 0b1111_0000)
    assert eight is not None
    # 26 units are left, of which half a one is done.
    assert eight.start_s == pytest.approx(NOW_S + 2550)
    assert eight.end_s == pytest.approx(eight.start_s + 3600)


def test_a_set_ends_with_its_slowest_resident_at_the_predicted_pace() -> None:
    """Sharing counts: the GPUs are free when the last of the set has left."""
    pair = [make_resident(make_job(f, f, 4), granted_s=NOW_S) for f in ("A", "B")]
    table = timetable(make_snapshot(hold_gpus(make_node(), *pair), profiles=BOOK))
    slot = table.first_slot(make_job("eight", "A", 8))
    assert slot is not None
    assert slot.start_s == pytest.approx(NOW_S + max(3600 * 1.5, 7200 * 1.25))


def test_an_unknown_end_is_never_waited_for() -> None:
    """Where a fitting GPU's holder has no predicted end, no start is told."""
    node = hold_gpus(make_node(), make_resident(make_job("r", "never-seen", 8)))
    assert timetable(make_snapshot(node, profiles=BOOK)).first_slot(make_job("w", "A", 1)) is None


def test_a_run_over_its_prediction_is_expected_to_take_a_tenth_more() -> None:
    """An overdue job does not count as gone."""
    node = hold_gpus(make_node(), make_resident(make_job("r", "A", 8), granted_s=NOW_S - 5000))
    overdue = make_snapshot(node, profiles=make_book(make_solo("A", "V100", 8, unit_s=3600.0, units_total=1)))
    slot = timetable(overdue).first_slot(make_job("w", "A", 8))
    assert slot is not None
    assert slot.start_s == pytest.approx(NOW_S + 500)


def test_reservations_are_kept_free_until_they_begin() -> None:
    """A job lies before a reservation only if it is predicted to end by then."""
    state = make_node()
    first = Placement("node-a", ("node-a-gpu00",))
    snapshot = make_snapshot(state, profiles=BOOK)
    fits = timetable(snapshot, Reservation(first, NOW_S + 3600)).first_slot(make_job("w", "A", 1))
    assert fits is not None
    assert fits.mask == 0b1
    late = timetable(snapshot, Reservation(first, NOW_S + 3599)).first_slot(make_job("w", "A", 1))
    assert late is not None
    assert late.mask & 0b1 == 0
    whole = timetable(snapshot, Reservation(first, NOW_S + 60, NOW_S + 600)).first_slot(make_job("w", "A", 8))
    assert whole is not None
    assert whole.start_s == NOW_S + 600


def test_demand_takes_the_lowest_gpus_by_the_hour() -> None:
    """Each GPU is reserved for exactly the hours in which the curve reaches it."""
    curve = DemandCurve("node-a", (*(1,) * 12, *(2,) * 12))
    settings = PoolSettings(demand=(curve,))
    midnight = 24 * 3600.0
    found = demand_reservations(make_snapshot(make_node(), settings=settings, now_s=midnight + 1800))
    spans = {(r.placement.gpu_uuids, r.start_s - midnight, r.end_s - midnight) for r in found}
    hour = 3600.0
    assert spans == {
        (("node-a-gpu00",), 0.0, 48 * hour),
        (("node-a-gpu01",), 12 * hour, 24 * hour),
        (("node-a-gpu01",), 36 * hour, 48 * hour),
    }
    assert all(math.isfinite(r.end_s) for r in found)
