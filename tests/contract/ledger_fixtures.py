"""The fixtures that the parts of the ledger's contract share."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.ports import Ledger
from tests.contract.parts import ManualClock, make_job, make_node

OWNER = "executor-1"


class LedgerFixtures:
    """An empty ledger, handed in by the subclass, and one with a node and four waiting jobs."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def ledger(self, clock: ManualClock) -> Ledger:
        raise NotImplementedError

    @pytest.fixture
    def filled(self, ledger: Ledger) -> Ledger:
        """A node of four GPUs and the waiting jobs j1 to j4."""
        ledger.save_nodes([make_node()])
        for name in ("j1", "j2", "j3", "j4"):
            ledger.add_waiting(make_job(name, family=f"family-{name}"), OWNER)
        return ledger
