"""One planning cycle over all pools: look, decide, act, record. Live and in the simulator alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.decision import Finding, Reason, Verdict, hold
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.gpu import GpuReading, Node
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan, Steer
from airflow_provider_eaco.core.model.job import JobKind
from airflow_provider_eaco.core.model.placement import Lease, Placement
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, NodeState, PoolState
from airflow_provider_eaco.core.policy.base import AdmissionPolicy, Ordering, Review
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy, make_rules
from airflow_provider_eaco.core.ports import (
    DecisionLog,
    EnergyUse,
    Explain,
    Ledger,
    LedgerView,
    Member,
    PlannerLock,
    ProfileStore,
)
from airflow_provider_eaco.engine.applier import Applied, Applier, Rejection
from airflow_provider_eaco.engine.budgets import READ_EVERY_S, DayEnergy
from airflow_provider_eaco.engine.explaining import explaining
from airflow_provider_eaco.engine.past import PastUse
from airflow_provider_eaco.engine.prices import EnergyPricing
from airflow_provider_eaco.engine.snapshots import SnapshotBuilder
from airflow_provider_eaco.engine.strangers import make_room

MakePolicy = Callable[[PoolSettings], AdmissionPolicy]
MakeOrdering = Callable[[str], Ordering]


@quick_init
@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle did.

    ``planned`` is false when another planner holds the lock, and when the store failed before anything was
    decided. ``problem`` names a failure of the store; what had been done until then is in the other fields.
    ``failures`` has, by pool, the exception of a policy or an ordering that holds that pool's jobs.
    ``granted`` are the new leases, ``rejected`` the jobs that can never run, ``conflicts`` the jobs whose
    GPUs changed while it was planned (they wait on), ``yielding`` those that were asked to leave.
    ``decided`` are all decisions, ``changed`` those that were news. ``steers`` is what nodes and GPUs are to
    be told, after the grants have begun; ``look_again_s`` the earliest instant at which a pool wants to be
    planned again though nothing happens.
    """

    planned: bool
    problem: str | None = None
    granted: tuple[Lease, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    conflicts: tuple[str, ...] = ()
    confirmed: tuple[Placement, ...] = ()
    unconfirmed: tuple[Placement, ...] = ()
    yielding: tuple[str, ...] = ()
    decided: tuple[KindDecision, ...] = ()
    changed: tuple[KindDecision, ...] = ()
    steers: tuple[Steer, ...] = ()
    look_again_s: float | None = None
    failures: Mapping[str, str] = field(default_factory=dict)


class AdmissionLoop:
    """Plans for all schedulers whenever it gets the planner lock.

    :param pools: returns the declared pools with what Airflow says of them now.
    :param owner: the planner's name, unique among schedulers.
    :param planner_ttl_s: how long the planner lock outlives a planner that died.
    :param report_timeout_s: see :class:`~airflow_provider_eaco.engine.snapshots.SnapshotBuilder`.
    :param pricing: where policies that weigh joules by prices have them from, by default without a solver.
    :param energy_use: what jobs have used, for pools with a budget of kilowatt-hours; read every
        ``read_use_every_s`` at most.
    """

    def __init__(
        self,
        ledger: Ledger,
        profiles: ProfileStore,
        decisions: DecisionLog,
        planner: PlannerLock,
        *,
        pools: Callable[[], Sequence[PoolState]],
        owner: str,
        planner_ttl_s: float = 30.0,
        report_timeout_s: float | None = 120.0,
        policy_of: MakePolicy = make_policy,
        ordering_of: MakeOrdering = make_ordering,
        pricing: EnergyPricing | None = None,
        energy_use: EnergyUse | None = None,
        read_use_every_s: float = READ_EVERY_S,
    ) -> None:
        self._ledger = ledger
        self._profiles = profiles
        self._decisions = decisions
        self._planner = planner
        self._pools = pools
        self._owner = owner
        self._planner_ttl_s = planner_ttl_s
        self._policy_of = policy_of
        self._ordering_of = ordering_of
        self._pricing = pricing or EnergyPricing(None)
        self._builder = SnapshotBuilder(report_timeout_s)
        self._past = PastUse(ledger)
        self._day = DayEnergy(energy_use, read_use_every_s)
        self._applier = Applier(ledger, profiles, decisions)
        # By pool, with the settings that each was made of.
        self._policies: dict[str, tuple[PoolSettings, AdmissionPolicy]] = {}

    def run_once(self, readings: Sequence[GpuReading] = ()) -> CycleReport:
        """Run one cycle unless another planner is at it; a store that fails ends it with a report.

        :param readings: what the meters read last, one per GPU; a GPU without one is unknown.
        """
        cycle = _Cycle()
        try:
            if not self._planner.acquire(self._owner, self._planner_ttl_s):
                return cycle.report(planned=False)
            try:
                self._plan_all(readings, cycle)
            finally:
                self._planner.release(self._owner)
        except StoreUnavailableError as error:
            return cycle.report(planned=cycle.planned, problem=str(error))
        return cycle.report(planned=True)

    def judge_ahead(
        self, pool: PoolState, node: Node, members: tuple[Member, ...], now_s: float
    ) -> tuple[GpuSet, Review | None] | None:
        """Return a set and what a cycle at ``now_s`` would do about it; ``None``: nobody can be judged there.

        :param pool: of the set; reviews look at its settings alone.
        :param members: all who hold the GPUs, two or more.
        :param node: as the ledger has it.
        """
        held = self._builder.set_ahead(node, members)
        if held is None or len(held.residents) < len(members):
            return None
        snapshot = ClusterSnapshot(now_s, pool, {node.name: NodeState(node)}, profiles=self._profiles.book())
        return held, self._policy(pool.settings).review(held, snapshot)

    def _plan_all(self, readings: Sequence[GpuReading], cycle: _Cycle) -> None:
        pools = tuple(self._pools())
        by_uuid = {reading.uuid: reading for reading in readings}
        view: LedgerView | None = None
        snapshots: dict[str, ClusterSnapshot] = {}
        for pool in pools:
            if pool.settings.mode is PoolMode.OFF:
                continue
            if view is None:
                view = self._ledger.view()
                states = self._past.told(pools, view)
                snapshots = self._builder.build(view, states, self._profiles.book(), by_uuid)
            acted = self._plan_pool(pool, snapshots[pool.settings.name], view, cycle)
            cycle.planned = True
            # Pools may share nodes and beliefs: the next one plans with what this one has done.
            if acted:
                view = None

    def _plan_pool(self, pool: PoolState, snapshot: ClusterSnapshot, view: LedgerView, cycle: _Cycle) -> bool:
        """Decide, act and record for one pool; return whether ledger or profiles may have changed."""
        settings = pool.settings
        try:
            ordering, rules = self._ordering_of(settings.ordering), make_rules(settings)
            policy = self._policy(settings)
            snapshot = self._day.told(snapshot)
            if getattr(policy, "weighs_prices", False):
                snapshot = replace(snapshot, prices=self._pricing.of(snapshot))
            plan = run_cycle(policy, ordering, snapshot, rules)
            cycle.look_again_at(plan.look_again_s)
            return self._carry_out(plan, snapshot, view, cycle, policy)
        except StoreUnavailableError:
            raise
        # A user's policy may raise anything, also on leaving, and may return what nobody can act on or store:
        # only its pool waits.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._policies.pop(settings.name, None)
            problem = f"{type(error).__name__}: {error}"
            cycle.failures[settings.name] = problem
            granted = frozenset(lease.job_id for lease in cycle.applied.granted)
            self._carry_out(_all_held(snapshot, problem, granted), snapshot, view, cycle)
            return True

    def _carry_out(
        self,
        plan: Plan,
        snapshot: ClusterSnapshot,
        view: LedgerView,
        cycle: _Cycle,
        policy: AdmissionPolicy | None = None,
    ) -> bool:
        """Act on a plan and record it; return whether ledger or profiles may have changed."""
        explain = None if policy is None else explaining(policy, snapshot, plan)
        if snapshot.pool.settings.mode is PoolMode.OBSERVE:
            self._record(plan, cycle, explain)
            return False
        conflicts_before = len(cycle.applied.conflicts)
        waiting = view.index().waiting if plan.instructions else ()
        owners = {record.job.job_id: record.owner for record in waiting}
        self._applier.apply(plan, snapshot, view.gpu_versions, owners, cycle.applied)
        conflicts = frozenset(cycle.applied.conflicts[conflicts_before:])
        self._record(_without(plan, conflicts), cycle, explain)
        asked = make_room(self._ledger, self._decisions, snapshot)
        cycle.applied.yielding.extend(asked)
        return bool(plan.instructions or asked)

    def _record(self, plan: Plan, cycle: _Cycle, explain: Explain | None) -> None:
        cycle.decided.extend(plan.decisions)
        cycle.changed.extend(self._decisions.record(plan, explain))

    def _policy(self, settings: PoolSettings) -> AdmissionPolicy:
        known = self._policies.get(settings.name)
        if known is None or (known[0] is not settings and known[0] != settings):
            known = self._policies[settings.name] = settings, self._policy_of(settings)
        return known[1]


@dataclass(slots=True)
class _Cycle:
    """What a cycle has done so far."""

    planned: bool = False
    applied: Applied = field(default_factory=Applied)
    decided: list[KindDecision] = field(default_factory=list)
    changed: list[KindDecision] = field(default_factory=list)
    look_again_s: float | None = None
    failures: dict[str, str] = field(default_factory=dict)

    def look_again_at(self, at_s: float | None) -> None:
        if at_s is not None:
            self.look_again_s = at_s if self.look_again_s is None else min(at_s, self.look_again_s)

    def report(self, *, planned: bool, problem: str | None = None) -> CycleReport:
        done = self.applied
        return CycleReport(
            planned=planned,
            problem=problem,
            granted=tuple(done.granted),
            rejected=tuple(done.rejected),
            conflicts=tuple(done.conflicts),
            confirmed=tuple(done.confirmed),
            unconfirmed=tuple(done.unconfirmed),
            yielding=tuple(done.yielding),
            decided=tuple(self.decided),
            changed=tuple(self.changed),
            steers=tuple(done.steers),
            look_again_s=self.look_again_s,
            failures=dict(self.failures),
        )


def _all_held(snapshot: ClusterSnapshot, problem: str, granted: frozenset[str]) -> Plan:
    """Return the plan of a pool that cannot be planned: everybody waits and sees why."""
    settings = snapshot.pool.settings
    sentence = (
        f"GPU pool {settings.name} cannot be planned with policy {settings.policy} and ordering "
        f"{settings.ordering}: {problem}; its tasks wait until that is corrected or [eaco] pools names others"
    )
    finding = Finding(Reason.MISCONFIGURED, {"problem": sentence})
    kinds: dict[JobKind, list[str]] = {}
    waiting = [job for job in snapshot.waiting if job.job_id not in granted]
    for job in waiting:
        kinds.setdefault(job.kind, []).append(job.job_id)
    return Plan(
        pool=settings.name,
        now_s=snapshot.now_s,
        decisions=tuple(KindDecision(kind, tuple(ids), hold(finding)) for kind, ids in kinds.items()),
        order=tuple(job.job_id for job in waiting),
    )


def _without(plan: Plan, conflicts: frozenset[str]) -> Plan:
    """Return the plan without the admissions that did not happen; the next cycle decides anew."""
    if not conflicts:
        return plan
    return replace(
        plan,
        decisions=tuple(
            item
            for item in plan.decisions
            if item.decision.verdict is not Verdict.ADMIT or not conflicts.intersection(item.job_ids)
        ),
    )
