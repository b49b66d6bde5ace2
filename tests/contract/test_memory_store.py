"""The adapters in memory keep the contracts of their ports."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.model.decision import Reason, Verdict
from airflow_provider_eaco.core.ports import DecisionLog, Ledger, PlannerLock, ProfileStore
from airflow_provider_eaco.simulator.memory_decisions import MemoryDecisionLog
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from airflow_provider_eaco.simulator.memory_store import MemoryLedger, MemoryPlannerLock
from tests.contract.decision_log_suite import DecisionLogContract
from tests.contract.ledger_suite import LedgerContract
from tests.contract.ledger_walk_suite import LedgerWalkContract
from tests.contract.parts import ManualClock
from tests.contract.planner_lock_suite import PlannerLockContract
from tests.contract.profile_store_suite import BUILT_IN, ProfileStoreContract


class TestMemoryLedger(LedgerContract):
    """The ledger in memory."""

    @pytest.fixture
    def ledger(self, clock: ManualClock) -> Ledger:
        return MemoryLedger(clock)


class TestMemoryLedgerWalk(LedgerWalkContract):
    """The ledger in memory, over ten thousand random steps."""

    @pytest.fixture
    def ledger(self, clock: ManualClock) -> Ledger:
        return MemoryLedger(clock)


class TestMemoryPlannerLock(PlannerLockContract):
    """The planner lock in memory."""

    @pytest.fixture
    def lock(self, clock: ManualClock) -> PlannerLock:
        return MemoryPlannerLock(clock)


class TestMemoryProfileStore(ProfileStoreContract):
    """The profile store in memory, over the built-in book."""

    @pytest.fixture
    def profiles(self) -> ProfileStore:
        return MemoryProfileStore(BUILT_IN)


class TestMemoryDecisionLog(DecisionLogContract):
    """The decision log in memory."""

    @pytest.fixture
    def log(self) -> DecisionLog:
        return MemoryDecisionLog()

    def rows(self, log: DecisionLog) -> list[tuple[str, Verdict, Reason | None]]:
        assert isinstance(log, MemoryDecisionLog)
        return [
            (row.pool, row.decision.decision.verdict, row.decision.decision.reason) for row in log.decisions
        ]

    def events(self, log: DecisionLog, job_id: str) -> list[tuple[str, str, float]]:
        assert isinstance(log, MemoryDecisionLog)
        return [(row.event, row.text, row.at_s) for row in log.events if row.job_id == job_id]
