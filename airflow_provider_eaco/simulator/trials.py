"""Whether a report of a trial leads to anything: with nobody in the queue a cycle is only run if one does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolMode
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.policy.base import judges_sets_alone
from airflow_provider_eaco.core.policy.registry import make_policy
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop, CycleReport
from airflow_provider_eaco.engine.watching import SetWatch
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from airflow_provider_eaco.simulator.scenario import Scenario


class Trials:
    """Follows what happens to sets. Of a policy whose reviews look at more than their set, all is news.

    :param nodes: by name.
    """

    def __init__(
        self,
        scenario: Scenario,
        loop: AdmissionLoop,
        profiles: MemoryProfileStore,
        ledger: MemoryLedger,
        nodes: Mapping[str, Node],
    ) -> None:
        self._ledger = ledger
        self._nodes = nodes
        self._refused = False
        self._watch: SetWatch | None = None
        settings = scenario.settings
        sets_alone = judges_sets_alone(make_policy(settings)) and not scenario.steers
        if sets_alone and settings.mode is PoolMode.SHARE:
            judge = partial(loop.judge_ahead, PoolState(settings))
            self._watch = SetWatch(judge, settings.trial_limit_s, profiles, ledger.members_on)

    def touch(self, lease: Lease) -> None:
        """Note that the job has reported, or that its lease has ended."""
        if lease.state is not LeaseState.EXCLUSIVE:
            self._touch(lease.placement)

    def follow(self, report: CycleReport) -> None:
        """Note what a cycle did."""
        for lease in report.granted:
            self.touch(lease)
        for placement in (*report.confirmed, *report.unconfirmed):
            self._touch(placement)
        for job_id in report.yielding:
            asked = self._ledger.lease_of(job_id)
            if asked is not None:
                self._touch(asked.placement)
        self._refused = bool(report.rejected)

    def are_news(self, now_s: float, look_again_s: float | None) -> bool:
        """Return whether a cycle would do anything at ``now_s`` while nobody waits.

        :param look_again_s: the instant at which the last cycle wanted another one.
        """
        # Even one that does nothing takes that wish back, and forgets whom the last one refused.
        if self._watch is None or self._refused or look_again_s is not None:
            return True
        return self._watch.is_due(now_s)

    def _touch(self, placement: Placement) -> None:
        if self._watch is not None:
            self._watch.touch(placement, self._nodes[placement.node])
