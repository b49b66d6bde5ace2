"""GPUs that somebody outside Airflow has booked: who may still start there, and what the others are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.booking import (
    Booking,
    BookingOverlapError,
    InvalidBookingError,
    WantedBooking,
    booking_of,
    gpus_in_words,
    names_of,
    refuse_overlap,
)
from airflow_provider_eaco.core.model.instruction import Yield
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
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
from tests.unit.core import test_frontier as frontier
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import codes_of, launched, texts_of

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
BOOK = make_book(
    *(
        make_solo(f"{hours}h", "V100", gpus, unit_s=hours * HOUR_S, units_total=1, power_w=100.0)
        for hours in (1, 3, 40)
        for gpus in (1, 8)
    ),
    make_pair({"1h": 1.0, "40h": 1.0}, "V100", power_w=101.0),
    make_pair({"3h": 1.0, "40h": 1.0}, "V100", power_w=101.0),
)
WAYS = [
    pytest.param(policy, ordering, id=f"{policy}-{ordering}")
    for policy in ("exclusive", "eaco", "frontier")
    for ordering in ("fifo", "backfill", "horizon")
]


def booking(
    start_s: float, end_s: float, gpus: tuple[int, ...] = (0,), node: str = "node-a", **changes: object
) -> Booking:
    """A booking of the node's GPUs, counted from now."""
    uuids = tuple(f"{node}-gpu{index:02d}" for index in gpus)
    made = Booking(7, Placement(node, uuids), NOW_S + start_s, NOW_S + end_s, "Ada")
    return replace(made, **changes)  # type: ignore[arg-type]  # fields by name


def seen(
    *nodes: NodeState,
    families: tuple[str, ...],
    bookings: tuple[Booking, ...],
    policy: str = "exclusive",
    ordering: str = "fifo",
) -> ClusterSnapshot:
    """Jobs of one GPU, named by place in the queue, and the bookings."""
    waiting = [make_job(str(place), family, 1) for place, family in enumerate(families)]
    settings = PoolSettings(policy=policy, ordering=ordering)
    made = make_snapshot(*nodes, waiting=waiting, profiles=BOOK, settings=settings)
    return replace(made, bookings=bookings)


@pytest.mark.parametrize(("policy", "ordering"), WAYS)
@pytest.mark.parametrize(
    ("family", "start_s", "end_s", "starts"),
    [
        pytest.param("1h", 2 * HOUR_S, 4 * HOUR_S, True, id="over before it begins"),
        pytest.param("3h", 2 * HOUR_S, 4 * HOUR_S, False, id="still there when it begins"),
        pytest.param("1h", -HOUR_S, HOUR_S, False, id="it runs"),
        pytest.param("1h", -HOUR_S, 0.0, True, id="it is over"),
        pytest.param("40h", 30 * HOUR_S, 31 * HOUR_S, False, id="known to be there tomorrow"),
        pytest.param("40h", 41 * HOUR_S, 42 * HOUR_S, True, id="known to be gone by then"),
        pytest.param("unknown", 23 * HOUR_S, 25 * HOUR_S, False, id="nobody knows how long, within a day"),
        pytest.param("unknown", 25 * HOUR_S, 26 * HOUR_S, True, id="nobody knows how long, far away"),
    ],
)
def test_who_would_still_be_there_does_not_start(
    policy: str, ordering: str, family: str, start_s: float, end_s: float, *, starts: bool
) -> None:
    """Under every policy and ordering a job starts on booked GPUs only if it is gone when they are needed."""
    plan = run_checked(
        seen(
            make_node(gpus=1),
            families=(family,),
            bookings=(booking(start_s, end_s),),
            policy=policy,
            ordering=ordering,
        )
    )
    assert ("0" in launched(plan)) is starts
    if not starts:
        assert codes_of(plan, "0")[0] == "booked"
        assert "GPU 0 of node-a by Ada from 1970-01-1" in texts_of(plan, "0")


@pytest.mark.parametrize(("policy", "ordering"), WAYS)
def test_other_gpus_of_the_node_are_not_booked(policy: str, ordering: str) -> None:
    """A job goes to the GPU that nobody has booked, also by its second choice, and nobody to the other."""
    plan = run_checked(
        seen(
            make_node(gpus=2),
            families=("3h", "3h"),
            bookings=(booking(HOUR_S, 2 * HOUR_S),),
            policy=policy,
            ordering=ordering,
        )
    )
    taken = {uuid for step in launched(plan).values() for uuid in step.placement.gpu_uuids}
    assert taken == {"node-a-gpu01"}


@pytest.mark.parametrize("ordering", ["fifo", "backfill", "horizon"])
def test_who_cannot_start_before_a_booking_keeps_nothing_from_shorter_jobs(ordering: str) -> None:
    """The long job at the head waits for the end of the booking; the short one behind uses the time until
    then.
    """
    shown = seen(
        make_node(gpus=1),
        families=("3h", "1h"),
        bookings=(booking(2 * HOUR_S, 4 * HOUR_S),),
        ordering=ordering,
    )
    plan = run_checked(shown)
    assert set(launched(plan)) == {"1"}
    assert codes_of(plan, "0")[0] == "booked"


def test_a_job_that_only_other_jobs_keep_waiting_is_told_of_no_booking() -> None:
    """Where it would not fit without the booking either, or never fits there, the booking is no reason."""
    node = hold_gpus(make_node(gpus=2), make_resident(make_job("r", "3h", 1)))
    full = hold_gpus(node, make_resident(make_job("s", "3h", 1), token=2))
    booked = (booking(HOUR_S, 2 * HOUR_S),)
    plan = run_checked(seen(full, families=("3h",), bookings=booked))
    assert codes_of(plan, "0") == ["waiting_for_gpu"]
    wide = replace(make_snapshot(full, waiting=[make_job("0", "3h", 4)], profiles=BOOK), bookings=booked)
    assert codes_of(run_checked(wide), "0") == ["no_such_gpu"]


def test_nobody_joins_a_set_on_booked_gpus_for_longer() -> None:
    """Sharing a booked GPU is starting there: who is gone in time may, the other may not."""
    node = hold_gpus(make_node(gpus=1), make_resident(make_job("r", "40h", 1)))
    for family, joins in (("1h", True), ("3h", False)):
        shown = seen(node, families=(family,), bookings=(booking(2 * HOUR_S, DAY_S),), policy="eaco")
        plan = run_checked(shown)
        assert ("0" in launched(plan)) is joins
        if not joins:
            assert "booked" in codes_of(plan, "0")
    free = run_checked(seen(node, families=("3h",), bookings=(), policy="eaco"))
    assert launched(free)["0"].co_residents == ("r",)


def test_the_reason_names_who_is_first_on_each_gpu_and_how_many_more() -> None:
    """First comes who begins first; beyond three they are counted, and who comes later on a GPU is not."""
    starts = ((0, 4, "D"), (1, 1, "A"), (2, 2, "B {x}"), (3, 3, "C"), (1, 5, "later"), (0, 30, "far away"))
    booked = tuple(
        booking(HOUR_S * start, HOUR_S * start + 60, (gpu,), name=name, booking_id=start)
        for gpu, start, name in starts
    )
    plan = run_checked(seen(make_node(gpus=4), families=("unknown",), bookings=booked))
    told = texts_of(plan, "0")
    assert told.index(" by A from") < told.index(" by B {x} from") < told.index(" by C from")
    assert told.endswith("; and 1 more")


def test_who_waits_for_an_earlier_job_is_told_so_beside_the_booking() -> None:
    """GPUs that are kept for a job are a reason of their own; booked ones alone are not kept for a job."""
    node = hold_gpus(make_node(gpus=3), make_resident(make_job("r", "3h", 2)))
    booked = (booking(HOUR_S, 2 * HOUR_S, (2,)),)
    waiting = [make_job("-wide", "3h", 2), make_job("0", "3h", 1)]
    both = make_snapshot(node, waiting=waiting, profiles=BOOK)
    assert codes_of(run_checked(replace(both, bookings=booked)), "0")[:2] == [
        "booked",
        "reserved_for_earlier_job",
    ]
    alone = replace(both, waiting=both.waiting[1:], bookings=booked)
    assert codes_of(run_checked(alone), "0") == ["booked"]


def test_a_node_that_bookings_make_too_small_is_not_kept_for_who_needs_all_of_it() -> None:
    """What is left of it is used by others; where it would be large enough it is kept for the first."""
    waiting = [make_job("-wide", "3h", 2), make_job("0", "3h", 1)]
    plain = make_snapshot(make_node(gpus=2), waiting=waiting, profiles=BOOK)
    plan = run_checked(replace(plain, bookings=(booking(HOUR_S, 2 * HOUR_S),)))
    assert codes_of(plan, "-wide")[0] == "booked"
    assert launched(plan)["0"].placement.gpu_uuids == ("node-a-gpu01",)


def test_the_plan_is_looked_at_again_when_a_booking_begins_or_ends() -> None:
    """Whoever waits waits until the next edge at most."""
    booked = (booking(-HOUR_S, HOUR_S), booking(2 * HOUR_S, 3 * HOUR_S, booking_id=8))
    assert (
        run_checked(seen(make_node(gpus=1), families=("1h",), bookings=booked)).look_again_s == NOW_S + HOUR_S
    )
    later = (booking(2 * HOUR_S, 3 * HOUR_S),)
    shown = seen(make_node(gpus=1), families=("3h",), bookings=later)
    assert run_checked(shown).look_again_s == NOW_S + 2 * HOUR_S
    assert run_checked(seen(make_node(gpus=1), families=("1h",), bookings=())).look_again_s is None


def test_frontier_moves_nobody_to_a_booked_node() -> None:
    """Two who would do better together stay apart while both their nodes are booked within a day."""
    pair = frontier.snapshot(*[frontier.running(name, "J4") for name in ("a", "b")])
    gpus = tuple(range(8))

    def asked(start_s: float) -> list[Yield]:
        booked = tuple(booking(start_s, start_s + 60, gpus, f"node-{name}") for name in ("a", "b"))
        plan = run_checked(replace(pair, bookings=booked))
        return [step for step in plan.instructions if isinstance(step, Yield)]

    assert asked(HOUR_S) == []
    assert len(asked(2 * DAY_S)) == 1


def test_a_booking_on_a_node_of_another_pool_changes_nothing() -> None:
    """Bookings come for all nodes; who is not in this pool is not looked at."""
    elsewhere = (booking(-HOUR_S, HOUR_S, node="node-z"),)
    plan = run_checked(seen(make_node(gpus=1), families=("3h", "3h"), bookings=elsewhere))
    assert set(launched(plan)) == {"0"}
    assert codes_of(plan, "1") == ["waiting_for_gpu"]


# --- making one --------------------------------------------------------------------------------------------

NODES = [make_node(gpus=2).node, make_node("node-b", gpus=1).node, make_node("node-c", gpus=0).node]


def wanted(**changes: object) -> WantedBooking:
    plain = WantedBooking("node-a", (), None, NOW_S + HOUR_S, " Ada ", "notebook ")
    return replace(plain, **changes)  # type: ignore[arg-type]  # fields by name


def test_a_booking_names_gpus_by_index_or_uuid_and_all_by_default() -> None:
    """What is asked for becomes UUIDs, each once, from now or later on."""
    made = booking_of(wanted(), NODES, NOW_S)
    assert made.placement == Placement("node-a", ("node-a-gpu00", "node-a-gpu01"))
    assert (made.start_s, made.end_s, made.name, made.note) == (NOW_S, NOW_S + HOUR_S, "Ada", "notebook")
    one = booking_of(wanted(gpus=("1", "node-a-gpu01"), from_s=NOW_S + 60), NODES, NOW_S)
    assert (one.placement.gpu_uuids, one.start_s) == (("node-a-gpu01",), NOW_S + 60)


@pytest.mark.parametrize(
    ("changes", "argument", "told"),
    [
        ({"node": "node-x"}, "node", "no node is named 'node-x'; nodes are node-a, node-b, node-c"),
        (
            {"gpus": ("0", "5")},
            "gpus",
            "node node-a has no GPU '5'; it has 0 (node-a-gpu00), 1 (node-a-gpu01)",
        ),
        ({"gpus": ("node-b-gpu00",)}, "gpus", "node node-a has no GPU 'node-b-gpu00'"),
        ({"node": "node-c"}, "gpus", "node node-c has no GPUs now"),
        ({"from_s": NOW_S - 1}, "from_s", "is in the past; a booking begins now or later"),
        ({"until_s": NOW_S}, "until_s", "is in the past; a booking ends later than now"),
        ({"from_s": NOW_S + 2 * HOUR_S}, "until_s", "is not after the beginning"),
        ({"until_s": 1e300}, "until_s", "within five years"),
        ({"until_s": float("nan")}, "until_s", "within five years"),
        ({"from_s": -1e300}, "from_s", "is in the past"),
        ({"name": "  "}, "name", "is empty"),
        ({"name": "x" * 201}, "name", "at most 200 characters"),
        ({"name": "a\nb"}, "name", "on one line"),
        ({"note": "a\x1b[2J"}, "note", "printable"),
    ],
)
def test_what_cannot_be_booked_is_refused_by_its_argument(
    changes: dict[str, object], argument: str, told: str
) -> None:
    """The error names the argument and says what is allowed."""
    with pytest.raises(InvalidBookingError) as refused:
        booking_of(wanted(**changes), NODES, NOW_S)
    assert refused.value.argument == argument
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("other", "overlaps"),
    [
        (booking(0, HOUR_S), True),
        (booking(HOUR_S - 1, 2 * HOUR_S), True),
        (booking(HOUR_S, 2 * HOUR_S), False),
        (booking(-HOUR_S, 0), False),
        (booking(0, HOUR_S, (1,)), False),
    ],
)
def test_a_gpu_belongs_to_one_booking_at_a_time(other: Booking, *, overlaps: bool) -> None:
    """One may begin when the other ends; else it is told with whom it would overlap."""
    asked = booking(0, HOUR_S, (0,), booking_id=0, name="Bob")
    if not overlaps:
        return refuse_overlap(asked, [other], names_of(NODES))
    with pytest.raises(
        BookingOverlapError, match=r"gpus: GPU 0 of node-a is booked by Ada from .* \(booking 7\)"
    ):
        refuse_overlap(asked, [other], names_of(NODES))
    return None


def test_a_gpu_that_is_gone_is_shown_by_its_uuid() -> None:
    """Its index is nobody's any more."""
    found = gpus_in_words(Placement("node-b", ("GPU-gone", "node-b-gpu00")), names_of(NODES))
    assert found == "GPU 0, GPU-gone of node-b"
