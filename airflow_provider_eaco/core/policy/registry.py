"""Policies and orderings by name: the built-in ones, and those of a user's package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import ParamSpec, TypeVar

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.policy.base import AdmissionPolicy, Ordering
from airflow_provider_eaco.core.policy.eaco import EacoPolicy
from airflow_provider_eaco.core.policy.exclusive import ExclusivePolicy
from airflow_provider_eaco.core.policy.fifo_packed import FifoPackedPolicy
from airflow_provider_eaco.core.policy.frontier import FrontierPolicy
from airflow_provider_eaco.core.policy.gandiva import GandivaPolicy
from airflow_provider_eaco.core.policy.lucid import LucidPolicy
from airflow_provider_eaco.core.policy.ordering import FifoOrdering, ShortestFirstOrdering
from airflow_provider_eaco.core.policy.orderings.backfill import BackfillOrdering
from airflow_provider_eaco.core.policy.orderings.by_key import (
    EarliestDeadlineOrdering,
    LeastAttainedOrdering,
    PriorityOrdering,
    RemainingWorkOrdering,
)
from airflow_provider_eaco.core.policy.orderings.horizon import HorizonOrdering
from airflow_provider_eaco.core.policy.rules import AgeingRule, ReserveRule, Rule
from airflow_provider_eaco.core.policy.rules_energy import EnergyBudgetRule, ShiftRule
from airflow_provider_eaco.core.policy.rules_fair_share import FairShareRule

P = ParamSpec("P")
T = TypeVar("T")

POLICY_GROUP = "airflow_provider_eaco.policies"
ORDERING_GROUP = "airflow_provider_eaco.orderings"

POLICIES: Mapping[str, Callable[[PoolSettings], AdmissionPolicy]] = {
    "exclusive": ExclusivePolicy,
    "eaco": EacoPolicy,
    "fifo_packed": FifoPackedPolicy,
    "gandiva": GandivaPolicy,
    "lucid": LucidPolicy,
    "frontier": FrontierPolicy,
}
ORDERINGS: Mapping[str, Callable[[], Ordering]] = {
    "fifo": FifoOrdering,
    "sjf": ShortestFirstOrdering,
    "priority": PriorityOrdering,
    "remaining_work": RemainingWorkOrdering,
    "edf": EarliestDeadlineOrdering,
    "las": LeastAttainedOrdering,
    "backfill": BackfillOrdering,
    "horizon": HorizonOrdering,
}
RULES: Mapping[str, Callable[[PoolSettings], Rule]] = {
    "reserve": ReserveRule,
    "ageing": AgeingRule,
    "fair_share": FairShareRule,
}


def make_policy(settings: PoolSettings) -> AdmissionPolicy:
    """Return the pool's policy. In mode ``exclusive`` nothing is shared, whatever ``policy`` says.

    :raises InvalidSettingError: if no policy has that name, or the package that offers it cannot be loaded.
    """
    if settings.mode is PoolMode.EXCLUSIVE:
        return ExclusivePolicy(settings)
    make = POLICIES.get(settings.policy) or _from_package(
        settings.policy, POLICY_GROUP, POLICIES, f"[eaco] pools, {settings.name}, policy"
    )
    return make(settings)


def make_ordering(name: str) -> Ordering:
    """Return the ordering with this name.

    :raises InvalidSettingError: if no ordering has that name, or the package that offers it cannot be loaded.
    """
    make = ORDERINGS.get(name) or _from_package(name, ORDERING_GROUP, ORDERINGS, "[eaco] pools, ordering")
    return make()


def make_rules(settings: PoolSettings) -> tuple[Rule, ...]:
    """Return the pool's rules: those that it names, and those of its energy budget and of its series.

    :raises InvalidSettingError: if there is no rule of that name.
    """
    unknown = [name for name in settings.rules if name not in RULES]
    if unknown:
        unknown = sorted(set(unknown))
        allowed = ", ".join(sorted(RULES))
        problem = f"{', '.join(unknown)} is not known; allowed are {allowed}"
        raise InvalidSettingError(f"[eaco] pools, {settings.name}, rules", problem)
    rules = [RULES[name](settings) for name in settings.rules]
    if settings.energy_budget is not None:
        rules.append(EnergyBudgetRule(settings, settings.energy_budget))
    if settings.shift is not None:
        rules.append(ShiftRule(settings, settings.shift))
    return tuple(rules)


def _from_package(
    name: str, group: str, built_in: Mapping[str, Callable[P, T]], setting: str
) -> Callable[P, T]:
    offered = {entry.name: entry for entry in entry_points(group=group)}
    if name not in offered:
        allowed = ", ".join(sorted({*built_in, *offered}))
        raise InvalidSettingError(setting, f"{name!r} is not known; allowed are {allowed}")
    try:
        made: Callable[P, T] = offered[name].load()
    except (ImportError, AttributeError) as error:
        target = offered[name].value
        raise InvalidSettingError(setting, f"{name!r} could not be loaded from {target}: {error}") from error
    return made
