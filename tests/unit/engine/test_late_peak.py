"""From the memory that runs were seen to take to the next admission: the whole run's peak decides."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.job import Job, Progress
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook, ProfileKey, family_set
from airflow_provider_eaco.core.ports import RunMeter
from airflow_provider_eaco.engine.profiling import EndedRun, learn_memory, learn_run
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
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
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import codes_of, launched, texts_of

EARLY_MIB, PEAK_MIB, OTHER_MIB = 8 * 1024, 14 * 1024, 4000
MARGIN_MIB = PoolSettings().memory_margin_mib
#: 8 GiB for an epoch, 14 GiB in the validation that ends the run.
WHOLE = Progress(10, 10, 1000.0, can_yield=True, solo_unit_s=100.0, solo_units=10)
EARLY = Progress(1, 10, 100.0, can_yield=True, solo_unit_s=100.0, solo_units=1)
KEY = ProfileKey(family_set(("late",)), "T4", 1)


def late(job_id: str = "late", **changes: object) -> Job:
    """A job of the family that says nothing of its memory."""
    return make_job(job_id, "late", 1, gpu_memory_mib=None, **changes)


def seen(store: MemoryProfileStore, memory_mib: int, progress: Progress, phase: JobPhase) -> None:
    """Let a run end that took so much."""
    learn_run(store, EndedRun(late(progress=progress), phase, "T4", 1, RunMeter(memory_mib)), NOW_S)


def beside_others(book: ProfileBook) -> ProfileBook:
    """The book with another family, and how the two do together: only memory can keep them apart."""
    pair = make_pair({"late": 1.0, "other": 1.0})
    return make_book(*book.solo.values(), make_solo("other", memory_peak_mib=OTHER_MIB), pair)


def learned_from(*runs: tuple[int, Progress, JobPhase]) -> MemoryProfileStore:
    store = MemoryProfileStore(make_book(make_solo("late", memory_peak_mib=None)))
    for memory_mib, progress, phase in runs:
        seen(store, memory_mib, progress, phase)
    return store


FIRST = (PEAK_MIB, WHOLE, JobPhase.FINISHED)


@pytest.mark.parametrize("phase", [JobPhase.FINISHED, JobPhase.FAILED, JobPhase.YIELDED])
def test_c37_an_early_sample_alone_never_lowers_the_peak(phase: JobPhase) -> None:
    """A run that ended after one epoch, however it ended, has seen 8 GiB: the whole run's 14 GiB stay."""
    store = learned_from(FIRST, (EARLY_MIB, EARLY, phase))
    assert learn_memory(store, KEY, EARLY_MIB, NOW_S) is None
    solo = store.book().solo_of("late", "T4", 1)
    assert solo is not None
    assert solo.memory_peak_mib == PEAK_MIB


@pytest.mark.parametrize("runs", [(FIRST,), (FIRST, (EARLY_MIB, EARLY, JobPhase.FINISHED))])
@pytest.mark.parametrize("short_mib", [0, 1, MARGIN_MIB])
def test_c37_the_next_admission_uses_the_whole_runs_peak_and_the_margin(
    runs: tuple[tuple[int, Progress, JobPhase], ...], short_mib: int
) -> None:
    """A request that is silent on memory: with 14 GiB and the margin free it joins, with less it waits and is
    told the numbers; an early run in between changes nothing.
    """
    free_mib = PEAK_MIB + MARGIN_MIB - short_mib
    card = make_node(gpus=1, model="T4", memory_mib=OTHER_MIB + free_mib)
    resident = make_resident(make_job("other", "other", 1, gpu_memory_mib=None))
    book = beside_others(learned_from(*runs).book())
    plan = run_checked(make_snapshot(hold_gpus(card, resident), waiting=[late()], profiles=book))
    assert ("late" in launched(plan)) is (short_mib == 0)
    if short_mib:
        assert codes_of(plan, "late") == ["memory_would_overflow", "waiting_for_gpu"]
        told = f"needs {PEAK_MIB + MARGIN_MIB} MiB per GPU with margin, the best candidate has {free_mib} of"
        assert told in texts_of(plan, "late")


@pytest.mark.parametrize(("short_mib", "joins"), [(0, True), (1, False)])
def test_c37_a_run_that_has_taken_little_so_far_keeps_the_room_of_its_peak(
    short_mib: int, joins: bool
) -> None:
    """While a run is at 8 GiB, whoever wants to join it is given what 14 GiB leave."""
    total_mib = PEAK_MIB + OTHER_MIB + MARGIN_MIB - short_mib
    card = make_node(gpus=1, model="T4", memory_mib=total_mib)
    now = [GpuReading("node-a-gpu00", NOW_S, memory_used_mib=EARLY_MIB)]
    job = make_job("other", "other", 1, gpu_memory_mib=None)
    book = beside_others(learned_from(FIRST).book())
    held = hold_gpus(card, make_resident(late("running")))
    plan = run_checked(make_snapshot(held, waiting=[job], profiles=book, readings=now))
    assert ("other" in launched(plan)) is joins
    if not joins:
        assert codes_of(plan, "other") == ["memory_would_overflow", "waiting_for_gpu"]
