"""C41: a long random walk over the ledger against a model so plain that it can be read at a glance."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from airflow_provider_eaco.core.lifecycle import FINAL_PHASES, JobPhase
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.ports import Ledger, LedgerView
from tests.contract.parts import ManualClock, make_job, make_node

NODES = ("n1", "n2")
GPUS = 4
LIVE_JOBS = 16
GROUPS = (("0",), ("1",), ("2", "3"), ("0", "1", "2", "3"))


@dataclass
class Model:
    """What must be true: the phase of every job, and which job holds which GPUs by which token."""

    phases: dict[str, JobPhase] = field(default_factory=dict)
    held: dict[str, tuple[Placement, int]] = field(default_factory=dict)
    ended_tokens: list[int] = field(default_factory=list)
    last_token: int = 0
    next_job: int = 0

    def jobs_in(self, *phases: JobPhase) -> list[str]:
        return sorted(job_id for job_id, phase in self.phases.items() if phase in phases)

    def residents(self, placement: Placement) -> list[str]:
        return sorted(job_id for job_id, (where, _) in self.held.items() if where == placement)

    def is_free(self, placement: Placement) -> bool:
        taken = {uuid for where, _ in self.held.values() for uuid in where.gpu_uuids}
        return taken.isdisjoint(placement.gpu_uuids)

    def end(self, job_id: str, phase: JobPhase) -> None:
        self.ended_tokens.append(self.held.pop(job_id)[1])
        self.phases[job_id] = phase


class Walk:
    """One ledger and one model, moved by the same random steps."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self.model = Model()
        self.chance = random.Random(seed)
        self.old_view = ledger.view()
        self.steps: list[Callable[[], None]] = [
            *(self.admit, self.admit, self.grant, self.grant, self.grant, self.start, self.start),
            *(self.finish, self.fail, self.retry, self.clear, self.yields, self.comes_back),
            *(self.release_again, self.grant_from_an_old_view, self.reject, self.lose_process),
        ]

    def step(self) -> None:
        self.chance.choice(self.steps)()
        view = self.ledger.view()
        compare(view, self.model)
        if self.chance.random() < 0.1:
            self.old_view = view

    def some(self, *phases: JobPhase) -> str | None:
        jobs = self.model.jobs_in(*phases)
        return self.chance.choice(jobs) if jobs else None

    def admit(self) -> None:
        if len(self.model.phases) >= LIVE_JOBS:
            return
        job_id = f"job-{self.model.next_job}"
        self.model.next_job += 1
        self.ledger.add_waiting(make_job(job_id), "owner")
        self.model.phases[job_id] = JobPhase.WAITING

    def _place(self) -> Placement | None:
        """Return a held placement or a free one; never a part of a held one."""
        node = self.chance.choice(NODES)
        group = self.chance.choice(GROUPS)
        placement = Placement(node, tuple(f"GPU-{node}-{index}" for index in group))
        return placement if self.model.residents(placement) or self.model.is_free(placement) else None

    def grant(self) -> None:
        job_id, placement = self.some(JobPhase.WAITING), self._place()
        if job_id is None or placement is None:
            return
        others = tuple(self.model.residents(placement))
        state = LeaseState.TRIAL if others else LeaseState.EXCLUSIVE
        versions = self.ledger.view().gpu_versions
        lease = self.ledger.grant(Launch(make_job(job_id), placement, others), state, versions, "owner")
        assert lease.token > self.model.last_token
        self.model.last_token = lease.token
        self.model.held[job_id] = (placement, lease.token)
        self.model.phases[job_id] = JobPhase.LEASED

    def grant_from_an_old_view(self) -> None:
        """A grant from an old view either is refused or was still right: the model decides which."""
        job_id, placement = self.some(JobPhase.WAITING), self._place()
        if job_id is None or placement is None:
            return
        now = self.ledger.view().gpu_versions
        fresh = all(self.old_view.gpu_versions[uuid] == now[uuid] for uuid in placement.gpu_uuids)
        launch = Launch(make_job(job_id), placement, ())
        if fresh:
            return
        with pytest.raises(LeaseConflictError):
            self.ledger.grant(launch, LeaseState.EXCLUSIVE, self.old_view.gpu_versions, "owner")

    def start(self) -> None:
        job_id = self.some(JobPhase.LEASED)
        if job_id is not None:
            assert self.ledger.set_running(self.model.held[job_id][1], f"process-{job_id}")
            self.model.phases[job_id] = JobPhase.RUNNING

    def _release(self, job_id: str | None, phase: JobPhase) -> None:
        if job_id is None:
            return
        assert self.ledger.release(self.model.held[job_id][1], phase)
        self.model.end(job_id, phase)
        if phase in FINAL_PHASES and self.chance.random() < 0.7:
            del self.model.phases[job_id]

    def finish(self) -> None:
        self._release(self.some(JobPhase.RUNNING), JobPhase.FINISHED)

    def fail(self) -> None:
        self._release(self.some(JobPhase.RUNNING, JobPhase.LEASED), JobPhase.FAILED)

    def yields(self) -> None:
        self._release(self.some(JobPhase.RUNNING), JobPhase.YIELDED)

    def lose_process(self) -> None:
        self._release(self.some(JobPhase.RUNNING, JobPhase.LEASED), JobPhase.WAITING)

    def clear(self) -> None:
        self._release(self.some(JobPhase.RUNNING, JobPhase.LEASED), JobPhase.REMOVED)

    def _add_again(self, *phases: JobPhase) -> None:
        job_id = self.some(*phases)
        if job_id is not None:
            self.ledger.add_waiting(make_job(job_id), "owner")
            self.model.phases[job_id] = JobPhase.WAITING

    def retry(self) -> None:
        self._add_again(*FINAL_PHASES)

    def comes_back(self) -> None:
        self._add_again(JobPhase.YIELDED)

    def reject(self) -> None:
        job_id = self.some(JobPhase.WAITING)
        if job_id is not None and self.chance.random() < 0.3:
            assert self.ledger.finish_waiting(job_id, JobPhase.REJECTED)
            assert not self.ledger.finish_waiting(job_id, JobPhase.REJECTED)
            del self.model.phases[job_id]

    def release_again(self) -> None:
        if self.model.ended_tokens:
            token = self.chance.choice(self.model.ended_tokens)
            assert not self.ledger.release(token, JobPhase.FAILED)
            assert not self.ledger.set_running(token, "late")


def compare(view: LedgerView, model: Model) -> None:
    """Assert that the ledger shows what the model says, and nothing else."""
    shown = {record.job.job_id: record.phase for record in view.jobs}
    assert shown == {job_id: phase for job_id, phase in model.phases.items() if phase not in FINAL_PHASES}
    assert {lease.job_id: (lease.placement, lease.token) for lease in view.leases} == model.held
    assert set(model.held) == set(model.jobs_in(JobPhase.LEASED, JobPhase.RUNNING))
    sets: dict[str, set[Placement]] = {}
    for lease in view.leases:
        for uuid in lease.placement.gpu_uuids:
            sets.setdefault(uuid, set()).add(lease.placement)
    assert all(len(placements) == 1 for placements in sets.values()), "a GPU is in two sets"
    for placement in {lease.placement for lease in view.leases}:
        members = [lease for lease in view.leases if lease.placement == placement]
        assert len({lease.set_version for lease in members}) == 1
        alone = len(members) == 1
        assert all((lease.state is LeaseState.EXCLUSIVE) is alone for lease in members)


class LedgerWalkContract:
    """What holds for every :class:`Ledger` after every step. A slow one may take fewer ``steps``."""

    steps = 10_000

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def ledger(self, clock: ManualClock) -> Ledger:
        raise NotImplementedError

    def test_c41_the_ledger_equals_a_plain_model_at_each_step(self, ledger: Ledger) -> None:
        """Admit, grant, start, finish, fail, retry, clear, yield: nothing is counted twice or forgotten."""
        ledger.save_nodes([make_node(name, GPUS) for name in NODES])
        walk = Walk(ledger, seed=41)
        for _ in range(self.steps):
            walk.step()
        assert walk.model.last_token > self.steps / 20, "the walk granted too little to prove anything"
