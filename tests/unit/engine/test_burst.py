"""A burst of tasks that take several pool slots each, on virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import Verdict
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from tests.builders import make_job
from tests.unit.engine.rig import Rig

SLOTS = 24
SIZES = (12, 12, 16) * 30


def _burst() -> Rig:
    """More GPUs than the pool has slots for, and the whole burst waiting at one instant."""
    rig = Rig(pools=[PoolState(PoolSettings(), {"eaco": AirflowPool(SLOTS)})], nodes=("n1", "n2"), gpus=4)
    jobs = (make_job(f"job-{n:02d}", "C", 1, pool_slots=slots) for n, slots in enumerate(SIZES))
    rig.add(*jobs)
    return rig


def _samples(rig: Rig, chance: random.Random) -> Iterator[int]:
    """Yield the slots in use after each cycle of one of two schedulers, until the burst has run."""
    planners = (rig.loop, rig.make_loop("planner-2"))
    while rig.ledger.view().jobs:
        rig.clock.advance(chance.uniform(1.0, 60.0))
        for lease in rig.ledger.view().leases:
            if rig.phase(lease.job_id) is JobPhase.LEASED:
                rig.start(lease.job_id)
            elif chance.random() < 0.5:
                rig.end(lease.job_id)
        report = chance.choice(planners).run_once()
        assert (report.problem, report.failures, report.rejected) == (None, {}, ())
        yield sum(SIZES[int(lease.job_id.removeprefix("job-"))] for lease in rig.ledger.view().leases)


@pytest.mark.parametrize("seed", [1, 2])
def test_c13_a_burst_of_wide_tasks_never_exceeds_the_pool_and_all_of_it_runs(seed: int) -> None:
    """Of 12, 12 and 16 slots, thirty times at once in a pool of 24: no sample shows more than 24 slots in
    use, two of 12 do run together, and each task ends well, none of them failed for want of room.
    """
    rig = _burst()
    samples = list(_samples(rig, random.Random(seed)))
    assert max(samples) == SLOTS
    phases = {rig.phase(f"job-{n:02d}") for n in range(len(SIZES))}
    assert phases == {JobPhase.FINISHED}
    verdicts = {row.decision.decision.verdict for row in rig.log.decisions}
    assert verdicts == {Verdict.ADMIT, Verdict.HOLD}
