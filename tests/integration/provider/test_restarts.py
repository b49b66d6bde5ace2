"""What is found after a restart or a kill, on a pool of own GPUs and of a node's with a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.gpu import ForeignProcess
from airflow_provider_eaco.provider.cli.pool_rows import summary
from airflow_provider_eaco.store import schema
from tests.integration.provider.mixed_pool import FAR, OWN, Pool

JOBS = tuple(f"job-{n}" for n in range(10))
ENDED = {"finished": 5, "failed": 5}


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool in which five tasks have ended well and five have failed, some of either on each node."""
    pool = Pool(tmp_path, monkeypatch, gpus=5)
    pool.beat()
    pool.queue(*JOBS)
    pool.beat(2)
    assert Counter(map(pool.node_of, JOBS)) == {OWN: 5, FAR: 5}
    for number, job_id in enumerate(sorted(JOBS, key=pool.node_of)):
        state, exit_code = ("failed", 1) if number % 2 else ("success", 0)
        pool.end(job_id, state, exit_code)
    pool.beat(2)
    yield pool
    pool.engine.dispose()


def _phases(pool: Pool) -> Counter[str | None]:
    return Counter(map(pool.rig.phase, JOBS))


def _tokens(pool: Pool) -> list[int]:
    with pool.database.reading() as connection:
        return list(connection.scalars(schema.lease.select().with_only_columns(schema.lease.c.token)))


def test_c30_what_has_ended_is_not_revived_by_a_restart_of_all_components(finished: Pool) -> None:
    """Five tasks ended well and five failed; scheduler, API, worker and meters start anew on what is stored,
    the worker's register is an old one, and the broker delivers every message again: nothing is admitted or
    started a second time, and nothing is in use.
    """
    pool = finished
    assert _phases(pool) == ENDED
    tokens, orders = _tokens(pool), {name: len(each.orders) for name, each in pool.processes.items()}
    assert (len(tokens), sum(orders.values())) == (10, 10)
    pool.register.runs |= {(str(each["job_id"]), int(each["token"])) for each in pool.messages}
    pool.start()
    for message in list(pool.messages):
        pool.far.agent.take(message)
    pool.beat(2)
    assert _tokens(pool) == tokens
    assert {name: len(each.orders) for name, each in pool.processes.items()} == orders
    assert _phases(pool) == ENDED
    view = pool.rig.ledger.view()
    assert (view.jobs, view.leases, dict(view.index().used_slots)) == ((), (), {})
    shown = summary(view, {}, None)
    assert (shown.gpus, shown.gpus_used, shown.running, shown.waiting) == ("10", "0", "0", "0")
    read = [reading for cluster in pool.clusters.values() for reading in cluster.read()]
    assert [(each.utilisation_pct, each.memory_used_mib) for each in read] == [(0.0, 0)] * 10


def test_c28_the_leases_of_a_worker_that_was_killed_end_and_its_gpus_are_looked_at_first(pool: Pool) -> None:
    """The worker is killed -9 and Airflow gives its tasks up: their leases end as soon as the node has been
    silent for its time-out. A run that lives on when a worker is back keeps the node from new work until it
    is ended; what it left on a GPU is shown there by PID and user, and keeps that GPU until it is gone.
    """
    timeout_s = pool.rig.services.settings.node_timeout_s
    pool.queue("a", "b", "c", "d")
    pool.beat(3)
    lost = sorted(job_id for job_id in "abcd" if pool.node_of(job_id) == FAR)
    held = {job_id: lease.placement.gpu_uuids for job_id, lease in pool.leases().items()}
    assert len(lost) == 2
    for job_id in lost:
        pool.rig.become(job_id, "failed")
    pool.queue("next")
    killed_s = pool.clock.now_s()
    while set(lost) & set(pool.leases()):
        pool.beat(worker=False)
        assert pool.clock.now_s() - killed_s <= timeout_s + 10, "the time-out and two heartbeats"
    pool.beat(2, worker=False)
    assert pool.rig.phase("next") == "waiting", "nothing is granted on a node that is silent"
    far = pool.processes[FAR]
    far.end(lost[1], -9)
    pool.start_worker()
    pool.beat(2)
    assert [each for each in far.killed if each.endswith(f":{lost[0]}")], "no lease, so it is ended"
    assert pool.rig.phase("next") == "waiting", "an old run lives there"
    far.end(lost[0], -9)
    cluster = pool.clusters[FAR]
    cluster.strangers = frozenset(uuid for job_id in lost for uuid in held[job_id])
    cluster.by = (ForeignProcess(4711, "airflow"),)
    pool.beat(2)
    assert pool.rig.phase("next") == "waiting"
    shown = {uuid: told for uuid, told in pool.foreign().items() if uuid in pool.uuids(FAR)}
    assert shown == dict.fromkeys(cluster.strangers, "0 MiB: PID 4711 (airflow)")
    cluster.strangers = frozenset(held[lost[1]])
    pool.beat(2)
    assert pool.leases()["next"].placement.gpu_uuids == held[lost[0]]
