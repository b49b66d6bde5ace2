"""Case C41: a long random life of a ledger on SQL, held step by step against the ledger in memory."""

from __future__ import annotations

import random
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.ports import JobRecord, Ledger, LedgerView
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.ledger import SqlLedger
from tests.contract.parts import ManualClock, make_job, make_node, place
from tests.databases import database_on

STEPS = 800
NAMES = [f"j{index}" for index in range(10)]
SETS = [place(0), place(1), place(2, 3)]
ENDS = [JobPhase.FINISHED, JobPhase.FAILED, JobPhase.REMOVED, JobPhase.YIELDED, JobPhase.WAITING]
STATES = [LeaseState.CONFIRMED, LeaseState.UNCONFIRMED]


def facts(view: LedgerView) -> object:
    """What both ledgers have to agree on; numbers of versions and tokens are each ledger's own."""
    tokens = {lease.token: rank for rank, lease in enumerate(sorted(view.leases, key=lambda one: one.token))}
    versions = sorted({(lease.placement, lease.set_version) for lease in view.leases}, key=str)
    return (
        view.now_s,
        view.nodes,
        sorted((replace(record, observation=None) for record in view.jobs), key=lambda one: one.job.job_id),
        [replace(lease, token=tokens[lease.token], set_version=0) for lease in view.leases],
        len(versions),
        dict(view.gpu_versions),
    )


class Walk:
    """The same random step on several ledgers, each seen through its own view."""

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self._draw = random.Random(seed)
        self._clock = clock
        self.done: set[str] = set()

    def step(self, ledgers: list[Ledger]) -> None:
        """Draw one step from the state that all ledgers share, and take it on each of them."""
        self._clock.advance(self._draw.choice([0.0, 0.5, 3.0]))
        records = {record.job.job_id: record for record in ledgers[0].view().jobs}
        name = self._draw.choice(NAMES)
        seed = self._draw.random()
        outcomes = [self._act(ledger, name, records.get(name), random.Random(seed)) for ledger in ledgers]
        assert len(set(outcomes)) == 1, outcomes

    def _act(self, ledger: Ledger, name: str, record: JobRecord | None, draw: random.Random) -> str:
        view = ledger.view()
        lease = next((one for one in view.leases if one.job_id == name), None)
        if lease is None:
            action = self._without_lease(ledger, view, name, record, draw)
        elif draw.random() < 0.3:
            ledger.set_running(lease.token, "process")
            action = "start"
        elif draw.random() < 0.3:
            moved = ledger.set_lease_state(lease.placement, lease.set_version, draw.choice(STATES))
            action = f"move {moved}"
        elif draw.random() < 0.2:
            action = f"ask {ledger.ask_to_yield(name, lease.set_version - draw.choice([0, 0, 1]))}"
        elif draw.random() < 0.2:
            ledger.save_progress(name, Progress(draw.randrange(9), run_s=draw.random(), can_yield=True), None)
            action = "report"
        else:
            action = self._release(ledger, lease.token, draw.choice(ENDS))
        self.done.add(action.split(" ")[0])
        return action

    def _without_lease(
        self, ledger: Ledger, view: LedgerView, name: str, record: JobRecord | None, draw: random.Random
    ) -> str:
        if record is None or record.phase is not JobPhase.WAITING or draw.random() < 0.1:
            ledger.add_waiting(make_job(name, queued_s=view.now_s), f"owner-{draw.randrange(2)}")
            return "queue"
        if draw.random() < 0.15:
            return f"finish {ledger.finish_waiting(name, draw.choice([*ENDS[:3], JobPhase.REJECTED]))}"
        if record.job.on_hold or draw.random() < 0.1:
            return f"hold {ledger.set_hold(name, not record.job.on_hold)}"
        placement = draw.choice(SETS)
        there = tuple(one.job_id for one in view.leases if one.placement == placement)
        stale = draw.random() < 0.2
        versions = {uuid: version - stale for uuid, version in view.gpu_versions.items()}
        state = LeaseState.TRIAL if there else LeaseState.EXCLUSIVE
        try:
            ledger.grant(Launch(record.job, placement, there), state, versions, "planner")
        except LeaseConflictError:
            return "conflict"
        return "grant"

    def _release(self, ledger: Ledger, token: int, phase: JobPhase) -> str:
        try:
            return f"release {ledger.release(token, phase)} {ledger.release(token, phase)}"
        except ValueError:
            return "refused"


def test_c41_a_random_life_equals_the_reference_at_each_step() -> None:
    """Queue, grant, start, confirm, ask, report, release, finish, hold in any order: both ledgers agree."""
    clock = ManualClock()
    engine = sa.create_engine("sqlite://", poolclass=StaticPool)
    schema.metadata.create_all(engine)
    ledgers: list[Ledger] = [SqlLedger(database_on(engine, clock)), MemoryLedger(clock)]
    for ledger in ledgers:
        ledger.save_nodes([make_node()])
    walk = Walk(41, clock)
    for number in range(STEPS):
        walk.step(ledgers)
        stored, reference = (facts(ledger.view()) for ledger in ledgers)
        assert stored == reference, f"step {number}"
    assert walk.done == {
        *(
            "queue",
            "grant",
            "conflict",
            "start",
            "move",
            "ask",
            "report",
            "release",
            "refused",
            "finish",
            "hold",
        )
    }
    engine.dispose()
