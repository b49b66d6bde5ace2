"""A pool of a scheduler's own GPUs and of a node's with a worker: both are planned, started and metered."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.store import schema
from tests.integration.provider.mixed_pool import FAR, OWN, Pool


def test_tasks_run_and_are_metered_on_both_kinds_of_nodes(pool: Pool) -> None:
    """Each starts where its GPUs are, is told to the meter there, and has its joules once, of its GPU."""
    jobs = ("a", "b", "c", "d")
    pool.queue(*jobs)
    pool.beat(4)
    leases = pool.leases()
    assert {pool.rig.phase(job_id) for job_id in jobs} == {"running"}
    assert sorted(lease.placement.node for lease in leases.values()) == [FAR, FAR, OWN, OWN]
    started = {OWN: pool.rig.dispatcher, FAR: pool.far.processes}
    for node, dispatcher in started.items():
        there = {job_id for job_id, lease in leases.items() if lease.placement.node == node}
        assert {order.job_id for order in dispatcher.orders} == there
        assert {run.job_id for run in pool.clusters[node].history().residents} == there
    pool.beat(20)
    for job_id in jobs:
        pool.rig.become(job_id, "success")
        started[leases[job_id].placement.node].end(job_id)
    pool.beat(4)
    assert {pool.rig.phase(job_id) for job_id in jobs} == {"finished"}
    assert pool.leases() == {}
    with pool.database.reading() as connection:
        rows = connection.execute(schema.energy.select()).all()
    metered = {row.token: (row.gpu_uuid,) for row in rows if row.energy_j > 0}
    assert len(rows) == len(metered) == len(jobs)
    assert metered == {lease.token: lease.placement.gpu_uuids for lease in leases.values()}


@pytest.mark.parametrize("watched", [OWN, FAR])
def test_c34_strangers_keep_tasks_away_on_both_kinds_of_nodes(watched: str, pool: Pool) -> None:
    """What is read here and what the node reports weigh alike: the GPU stays free, and a task waits."""
    pool.clusters[watched].strangers = frozenset(pool.uuids(watched)[:1])
    pool.beat()
    pool.queue("a", "b", "c", "d")
    pool.beat(4)
    taken = {uuid for lease in pool.leases().values() for uuid in lease.placement.gpu_uuids}
    assert taken == {*pool.uuids(OWN), *pool.uuids(FAR)} - pool.clusters[watched].strangers
    (waiting,) = [job_id for job_id in "abcd" if pool.rig.phase(job_id) == "waiting"]
    pool.clusters[watched].strangers = frozenset()
    pool.beat(4)
    assert pool.node_of(waiting) == watched


def test_a_node_whose_worker_has_left_leaves_the_own_gpus_at_work(pool: Pool) -> None:
    """New tasks go to the GPUs that can be reached."""
    pool.far.agent.stop()
    pool.far.agent.run()
    pool.queue("a", "b", "c")
    for _ in range(3):
        pool.clock.advance(5.0)
        pool.rig.beat()
    assert {lease.placement.node for lease in pool.leases().values()} == {OWN}
    assert sorted(str(pool.rig.phase(job_id)) for job_id in "abc") == ["running", "running", "waiting"]
