"""What runs and trials teach, and what they must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.model.profile import PowerScope, ProfileSource, family_set
from airflow_provider_eaco.core.model.snapshot import GpuSet
from airflow_provider_eaco.core.ports import JobRecord, RunMeter
from airflow_provider_eaco.engine.profiling import EndedRun, ended_run, learn_run, learn_set
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from tests.builders import NOW_S, make_book, make_job, make_node, make_pair, make_resident, make_solo

DONE = Progress(10, 10, 1000.0, can_yield=True, solo_unit_s=100.0, solo_units=10, solo_spread_s=2.0)


def ended(progress: Progress = DONE, meter: RunMeter | None = None, **changes: Any) -> EndedRun:
    plain: dict[str, Any] = {"phase": JobPhase.FINISHED, "gpu_model": "T4", "gpu_count": 1}
    return EndedRun(make_job("j", "A", gpus=1, progress=progress), meter=meter, **{**plain, **changes})


def test_a_complete_run_becomes_a_profile() -> None:
    """A run alone from start to end gives unit time, spread, samples, length, peak, power and age."""
    store = MemoryProfileStore()
    meter = RunMeter(9000, 55.0, 98.0, 20.0, 61.5, PowerScope.BOARD)
    learned = learn_run(store, ended(meter=meter), NOW_S)
    assert learned == store.book().solo_of("A", "T4", 1)
    assert learned == make_solo(
        "A",
        unit_s=100.0,
        spread_s=2.0,
        samples=10,
        power_w=61.5,
        utilisation_pct=55.0,
        utilisation_max_pct=98.0,
        memory_utilisation_pct=20.0,
        memory_peak_mib=9000,
        units_total=10,
        checkpoints=True,
        scope=PowerScope.BOARD,
        updated_s=NOW_S,
    )


@pytest.mark.parametrize("phase", [each for each in JobPhase if each is not JobPhase.FINISHED])
def test_c62_a_run_that_did_not_finish_teaches_nothing(phase: JobPhase) -> None:
    """Failed, killed, yielded and removed runs never enter a profile, whatever they had measured."""
    store = MemoryProfileStore(make_book(make_solo("A")))
    before = store.book()
    assert learn_run(store, ended(meter=RunMeter(20_000), phase=phase), NOW_S) is None
    assert store.book() is before


def test_runs_are_averaged_by_their_units() -> None:
    """A second run moves the mean by its share of the units."""
    store = MemoryProfileStore()
    learn_run(store, ended(), NOW_S)
    learned = learn_run(store, ended(replace(DONE, solo_unit_s=130.0, solo_units=5)), NOW_S + 1)
    assert learned is not None
    assert learned.unit_s == pytest.approx(110.0)
    assert (learned.samples, learned.updated_s) == (15, NOW_S + 1)
    assert learned.spread_s is not None
    assert learned.spread_s > 10


def test_numbers_of_another_source_are_replaced() -> None:
    """A built-in unit time is not averaged with a measured one; what was not measured stays."""
    built_in = make_solo("A", unit_s=1404.0, utilisation_pct=36.0, source=ProfileSource.BUILT_IN, stale=True)
    learned = learn_run(MemoryProfileStore(make_book(built_in)), ended(), NOW_S)
    assert learned is not None
    assert (learned.unit_s, learned.samples, learned.utilisation_pct) == (100.0, 10, 36.0)
    assert (learned.source, learned.stale) == (ProfileSource.MEASURED, False)


def test_times_that_a_run_did_not_measure_keep_their_source() -> None:
    """Runs beside others do not make a built-in unit time a measured one, with which the next run alone would
    be averaged.
    """
    built_in = make_solo(
        "A", unit_s=1404.0, samples=90, source=ProfileSource.BUILT_IN, updated_s=1.0, stale=True
    )
    store = MemoryProfileStore(make_book(built_in))
    shared = learn_run(store, ended(Progress(10, 10, 1500.0, can_yield=True), RunMeter(5000)), NOW_S)
    assert shared is not None
    assert (shared.source, shared.samples, shared.updated_s) == (ProfileSource.BUILT_IN, 90, 1.0)
    assert not shared.stale
    alone = learn_run(store, ended(), NOW_S)
    assert alone is not None
    assert (alone.unit_s, alone.samples, alone.source) == (100.0, 10, ProfileSource.MEASURED)


@pytest.mark.parametrize(
    ("known_mib", "seen_mib", "peak_mib"),
    [(14_000, 8000, 14_000), (8000, 14_000, 14_000), (8000, None, 8000)],
)
def test_c37_the_peak_never_falls(known_mib: int, seen_mib: int | None, peak_mib: int) -> None:
    """The peak is that of the hungriest complete run; one that took less, or unknown, lowers nothing."""
    store = MemoryProfileStore(make_book(make_solo("A", memory_peak_mib=known_mib)))
    learned = learn_run(store, ended(meter=RunMeter(seen_mib)), NOW_S)
    assert learned is not None
    assert learned.memory_peak_mib == peak_mib


def test_c60_another_gpu_model_is_another_profile() -> None:
    """A run on another model or another number of GPUs starts a profile of its own."""
    store = MemoryProfileStore(make_book(make_solo("A")))
    learn_run(store, ended(replace(DONE, solo_unit_s=7.0), gpu_model="A100"), NOW_S)
    book = store.book()
    assert (book.solo[make_solo("A").key].unit_s, book.solo_of("A", "A100", 1).unit_s) == (100.0, 7.0)  # type: ignore[union-attr]  # just learned
    assert book.solo_of("A", "A100", 1).memory_peak_mib is None  # type: ignore[union-attr]  # just learned


def test_a_run_that_was_never_alone_gives_no_unit_time() -> None:
    """Shared units are no solo units: only the job's own memory peak is learned."""
    store = MemoryProfileStore(make_book(make_solo("A", memory_peak_mib=1000)))
    shared = Progress(10, 10, 1500.0, can_yield=True)
    assert learn_run(store, ended(shared), NOW_S) is None
    learned = learn_run(store, ended(shared, RunMeter(5000)), NOW_S)
    assert learned is not None
    assert (learned.unit_s, learned.samples, learned.memory_peak_mib) == (100.0, 3, 5000)


def test_an_early_stop_does_not_shorten_the_run() -> None:
    """A run that ended well before its total leaves the number of units as it was known."""
    store = MemoryProfileStore(make_book(make_solo("A", units_total=90)))
    learned = learn_run(store, ended(replace(DONE, units_done=4)), NOW_S)
    assert learned is not None
    assert learned.units_total == 90


def test_a_run_is_known_by_the_gpus_of_its_lease() -> None:
    """Model and count come from the inventory; GPUs that are gone or of several models give no run."""
    t4, a100 = make_node("n", 2, "T4").node, make_node("m", 1, "A100").node
    uuids = tuple(gpu.uuid for gpu in t4.gpus)
    record = JobRecord(make_job("j", "A", gpus=2, progress=DONE), JobPhase.RUNNING, "owner")
    lease = Lease(1, "j", Placement("n", uuids), LeaseState.EXCLUSIVE, 1, NOW_S)
    run = ended_run(record, lease, [a100, t4], JobPhase.FINISHED)
    assert run == EndedRun(record.job, JobPhase.FINISHED, "T4", 2)
    assert ended_run(record, lease, [a100], JobPhase.FINISHED) is None
    mixed = replace(lease, placement=Placement("n", (uuids[0], a100.gpus[0].uuid)))
    assert ended_run(record, mixed, [a100, t4], JobPhase.FINISHED) is None


# --- sets --------------------------------------------------------------------------------------------------


def held(*members: tuple[str, float | None], solo_s: float | None = None, units: int = 1) -> GpuSet:
    """A set on one T4 of families with their unit time under it."""
    gpus = make_node("n", 1, "T4").free
    residents = tuple(
        make_resident(
            make_job(f"{family}-{index}", family, gpus=1, progress=Progress(1, solo_unit_s=solo_s)),
            LeaseState.TRIAL,
            token=index + 1,
            set_version=2,
            unit_s=unit_s,
            units=units,
        )
        for index, (family, unit_s) in enumerate(members)
    )
    return GpuSet(Placement("n", (gpus[0].uuid,)), gpus, residents)


BOOK = make_book(make_solo("A", unit_s=100.0), make_solo("B", unit_s=200.0))


def test_a_trial_gives_the_slowdown_of_each_family() -> None:
    """Slowdown is the unit time under the set / the unit time alone of the family."""
    store = MemoryProfileStore(BOOK)
    learned = learn_set(store, held(("B", 220.0), ("A", 105.0)), NOW_S, undone=False)
    assert learned is not None
    assert learned == store.book().coallocation_of(family_set(("A", "B")), "T4", 1)
    assert learned.slowdowns == pytest.approx({"A": 1.05, "B": 1.1})
    assert (learned.samples, learned.undone, learned.updated_s) == (1, 0, NOW_S)


def test_a_runs_own_time_alone_goes_before_its_familys() -> None:
    """Where this very run was alone before, it is its own reference."""
    learned = learn_set(
        MemoryProfileStore(BOOK), held(("A", 60.0), ("B", 55.0), solo_s=50.0), NOW_S, undone=False
    )
    assert learned is not None
    assert learned.slowdowns == pytest.approx({"A": 1.2, "B": 1.1})


def test_a_family_that_is_there_twice_counts_with_its_mean() -> None:
    """Two members of one family are one number."""
    learned = learn_set(MemoryProfileStore(BOOK), held(("A", 120.0), ("A", 140.0)), NOW_S, undone=False)
    assert learned is not None
    assert learned.families == ("A", "A")
    assert learned.slowdowns == pytest.approx({"A": 1.3})


@pytest.mark.parametrize(
    "members",
    [
        pytest.param((("A", 105.0), ("B", None)), id="no-unit"),
        pytest.param((("A", 105.0), ("unknown", 9.0)), id="no-reference"),
    ],
)
def test_without_evidence_nothing_is_stored(members: tuple[tuple[str, float | None], ...]) -> None:
    """Every member needs a unit and a time alone: nothing is guessed."""
    store = MemoryProfileStore(BOOK)
    assert learn_set(store, held(*members), NOW_S, undone=False) is None
    assert learn_set(store, held(*members), NOW_S, undone=True) is None
    assert store.book() is BOOK


def test_an_undo_without_evidence_is_still_counted() -> None:
    """A set that has a profile remembers that it was undone, with the numbers it had."""
    pair = make_pair({"A": 1.05, "B": 1.05})
    store = MemoryProfileStore(make_book(make_solo("A"), make_solo("B"), pair))
    learned = learn_set(store, held(("A", 105.0), ("B", None)), NOW_S, undone=True)
    assert learned is not None
    assert (learned.undone, learned.slowdowns, learned.samples) == (1, pair.slowdowns, pair.samples)


def test_trials_are_averaged_and_an_undo_is_not_smoothed_away() -> None:
    """Good trials run into a mean; what undid a set stays at least as bad as it was seen (C59)."""
    pair = make_pair({"A": 1.04, "B": 1.04}, samples=3)
    store = MemoryProfileStore(make_book(make_solo("A"), make_solo("B"), pair))
    learned = learn_set(store, held(("A", 108.0), ("B", 104.0)), NOW_S, undone=False)
    assert learned is not None
    assert learned.slowdowns == pytest.approx({"A": 1.05, "B": 1.04})
    assert learned.samples == 4
    learned = learn_set(store, held(("A", 160.0), ("B", 104.0)), NOW_S, undone=True)
    assert learned is not None
    assert learned.slowdowns == pytest.approx({"A": 1.6, "B": 1.04})
    assert (learned.undone, learned.samples) == (1, 5)


def test_a_measured_set_replaces_a_built_in_one_and_keeps_its_power() -> None:
    """Slowdowns of another source are not averaged in; power that nobody measured here stays."""
    pair = make_pair({"A": 1.04, "B": 1.04}, power_w=77.0, source=ProfileSource.BUILT_IN)
    store = MemoryProfileStore(make_book(make_solo("A"), make_solo("B"), pair))
    learned = learn_set(store, held(("A", 108.0), ("B", 102.0), units=4), NOW_S, undone=False)
    assert learned is not None
    assert learned.slowdowns == pytest.approx({"A": 1.08, "B": 1.02})
    assert (learned.power_w, learned.samples, learned.source) == (77.0, 4, ProfileSource.MEASURED)


def test_a_set_on_mixed_models_teaches_nothing() -> None:
    """A profile is for one GPU model; a set over two of them has no key."""
    gpus = (make_node("n", 1, "T4").free[0], make_node("m", 1, "A100").free[0])
    mixed = replace(held(("A", 105.0), ("B", 105.0)), gpus=gpus)
    assert learn_set(MemoryProfileStore(BOOK), mixed, NOW_S, undone=False) is None
