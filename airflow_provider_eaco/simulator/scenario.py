"""What is simulated: jobs, nodes, truth, and how the pool decides; each benchmark makes one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import numpy as np

from airflow_provider_eaco.core.model.energy_budget import EnergyBudget
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.node_power import SleepRule
from airflow_provider_eaco.core.model.pool import PoolSettings, PowerLimits, PredictorName
from airflow_provider_eaco.core.policy.base import Lever, Ordering, SteeringPolicy, levers_of
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy, make_rules
from airflow_provider_eaco.simulator.beliefs import Belief
from airflow_provider_eaco.simulator.order_benchmark import kept_for_demand, order_by_name
from airflow_provider_eaco.simulator.order_workload import (
    FAMILY,
    GPUS_PER_NODE,
    USUAL_DAY,
    DayChoices,
    OrderDay,
    Oversized,
    draw_day,
)
from airflow_provider_eaco.simulator.power_levels import PowerCurve, read_power_curve
from airflow_provider_eaco.simulator.readers import read_trace
from airflow_provider_eaco.simulator.trace import TraceJob
from airflow_provider_eaco.simulator.truth import GavelTruth, PaperTruth, Truth, read_gavel_truth
from airflow_provider_eaco.simulator.workload import (
    EACO_NODES_JOBS,
    Workload,
    data_folder,
    eaco_nodes_jobs,
    gavel_jobs,
    philly_jobs,
    stretched_to_load,
)

EXCLUSIVE = "exclusive"


class Accounting(StrEnum):
    """Whether idle nodes stay on, or go to sleep by the rule of the benchmarks."""

    ALWAYS_ON = "always-on"
    SLEEP = "sleep"


class SleepBy(StrEnum):
    """Who says that a node sleeps or wakes: the rule of the benchmarks, or the policy."""

    RULE = "rule"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user of ``eaco-sim run`` chooses; ``None`` leaves it to the benchmark.

    ``power_levels``: the boards can be held to power limits, and policies that know how may do so.
    ``belief_error`` and ``duration_error`` are standard deviations of logarithms: of believed slowdowns and
    powers of sets, and of the run times that jobs tell.
    """

    policy: str = "eaco"
    order: str = "fifo"
    rules: tuple[str, ...] = ()
    seed: int = 1
    nodes: int | None = None
    gpus_per_node: int | None = None
    load: float | None = None
    jobs: int | None = None
    max_residents: int | None = None
    accounting: Accounting = Accounting.ALWAYS_ON
    sleep: SleepBy = SleepBy.RULE
    mean_stretch: float | None = None
    power_levels: bool = False
    predictor: PredictorName | None = None
    belief: Belief | None = None
    belief_error: float = 0.0
    duration_error: float = 0.0
    power_scale: float = 1.0
    energy_budget: EnergyBudget | None = None
    day: DayChoices = USUAL_DAY


@dataclass(frozen=True)
class Scenario:
    """One run, ready to be simulated. ``draws`` goes on after the jobs were drawn; ``day`` is that of the
    benchmark ``order``. ``choices`` and the file ``trace`` are what it was made from.
    """

    benchmark: str
    jobs: tuple[TraceJob, ...]
    nodes: int
    gpus_per_node: int
    truth: Truth
    settings: PoolSettings
    seed: int
    accounting: Accounting
    belief: Belief
    draws: np.random.Generator = field(compare=False)
    belief_error: float = 0.0
    duration_error: float = 0.0
    sleep_by: SleepBy = SleepBy.RULE
    day: OrderDay | None = None
    day_choices: DayChoices = USUAL_DAY
    choices: Choices | None = None
    trace: Path | None = None

    @property
    def ordering_of(self) -> Callable[[str], Ordering]:
        """How an ordering is found by its name; the benchmark ``order`` knows references, too."""
        return make_ordering if self.day is None else order_by_name

    @property
    def sleep(self) -> SleepRule | None:
        if self.accounting is Accounting.ALWAYS_ON:
            return None
        return SleepRule(idle_s=None) if self.obeys_sleep else SleepRule()

    @property
    def obeys_sleep(self) -> bool:
        """Whether nodes sleep and wake as the policy says."""
        return self.sleep_by is SleepBy.POLICY

    @cached_property
    def steers(self) -> bool:
        """Whether the policy tells nodes or GPUs anything beside placements."""
        return isinstance(make_policy(self.settings), SteeringPolicy)

    @property
    def mean_stretch_limit(self) -> float | None:
        """The bound on the mean stretch, ``None`` for a policy that knows none."""
        known = Lever.MEAN_STRETCH in levers_of(make_policy(self.settings))
        return self.settings.mean_stretch if known else None

    @property
    def shares(self) -> bool:
        """Whether a job may ever join another; if not, nothing that a running job reports changes a plan."""
        return self.settings.policy != EXCLUSIVE and self.settings.max_residents > 1

    @property
    def learns(self) -> bool:
        """Whether runs become profiles; where all is known there is nothing to learn."""
        return self.belief is not Belief.KNOWN

    @property
    def tells_run_times(self) -> bool:
        """Whether jobs tell how long they run instead of units: where nobody reports on the way, who looks
        ahead has to know a running job's end from its start.
        """
        return not self.shares and not self.learns

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes' names, which sort as their numbers do."""
        width = len(str(self.nodes - 1))
        return tuple(f"node-{number:0{width}d}" for number in range(self.nodes))


def eaco_nodes(choices: Choices) -> Scenario:
    """Return benchmark B1: the paper's cluster, every job on a whole node of eight V100.

    :raises InvalidSettingError: if no load is given for a number of nodes that has no usual one.
    """
    nodes = 28 if choices.nodes is None else choices.nodes
    _only("--gpus-per-node", choices.gpus_per_node, 8, "every job of eaco-nodes takes the 8 GPUs of a node")
    load = choices.load or _usual("--load", nodes, {28: 1.3, 64: 0.55})
    truth = PaperTruth(curve=_power_curve(choices))
    drawn = eaco_nodes_jobs(truth.families, nodes, load, choices.seed, choices.jobs or EACO_NODES_JOBS)
    settings = _settings(choices, max_residents=4)
    return _scenario(
        "eaco-nodes", choices, drawn, size=(nodes, 8), truth=truth, settings=settings, belief=Belief.KNOWN
    )


def gavel_gpus(choices: Choices) -> Scenario:
    """Return benchmark B2: compute-bound jobs on single V100, nodes of four."""
    gpus_per_node = 4 if choices.gpus_per_node is None else choices.gpus_per_node
    nodes = 64 // gpus_per_node if choices.nodes is None else choices.nodes
    gpus = nodes * gpus_per_node
    count = choices.jobs or int(_usual("--jobs", gpus, {64: 2_000, 512: 10_000}))
    truth = _gavel_truth(choices, gpus_per_node)
    drawn = gavel_jobs(truth.families, gpus, choices.load or 0.9, choices.seed, count)
    # Two compute-bound jobs fill a GPU by any measure; whether that pays is left to energy and stretch.
    settings = _settings(choices, max_residents=2, utilisation_limit_pct=200.0)
    size = nodes, gpus_per_node
    return _scenario(
        "gavel-gpus", choices, drawn, size=size, truth=truth, settings=settings, belief=Belief.SOLO
    )


def scale(choices: Choices) -> Scenario:
    """Return benchmark B4: the whole Philly trace on 312 nodes of eight V100; jobs of one GPU may share."""
    gpus_per_node = 8 if choices.gpus_per_node is None else choices.gpus_per_node
    nodes = 312 if choices.nodes is None else choices.nodes
    truth = _gavel_truth(choices, gpus_per_node)
    drawn = philly_jobs(truth.families, gpus_per_node, choices.seed, choices.jobs)
    if choices.load is not None:
        drawn = replace(drawn, jobs=stretched_to_load(drawn.jobs, choices.load, nodes * gpus_per_node))
    settings = _settings(choices, max_residents=2, utilisation_limit_pct=200.0)
    size = nodes, gpus_per_node
    return _scenario("scale", choices, drawn, size=size, truth=truth, settings=settings, belief=Belief.KNOWN)


def order(choices: Choices) -> Scenario:
    """Return benchmark B3: one day of gang jobs on V100, nobody shares, and order is the only change.

    :raises InvalidSettingError: for a policy that shares, and nodes of another size than the benchmark's.
    """
    if choices.policy != EXCLUSIVE:
        raise InvalidSettingError("--policy", f"is {choices.policy}; order is about order alone: exclusive")
    _only("--gpus-per-node", choices.gpus_per_node, GPUS_PER_NODE, "gangs of order fit nodes of 8 GPUs")
    nodes = 1 if choices.nodes is None else choices.nodes
    day = draw_day(choices.day.kind, nodes * GPUS_PER_NODE, choices.load or 1.0, choices.seed)
    fitting = day.without_oversized()
    # A day on which nothing fits is a day all the same: then its jobs wait.
    queued = fitting if fitting.jobs and choices.day.oversized is Oversized.LEAVE_OUT else day
    if not queued.jobs:
        raise InvalidSettingError("--load", "the demand alone is more: there is no job that could run")
    workload = Workload(queued.jobs[: choices.jobs], day.draws)
    settings = _settings(choices, max_residents=1, ordering_of=order_by_name)
    scenario = _scenario(
        "order",
        choices,
        workload,
        size=(nodes, GPUS_PER_NODE),
        truth=PaperTruth((FAMILY,)),
        settings=settings,
        belief=Belief.KNOWN,
    )
    demand = kept_for_demand(day, choices.day.demand, scenario.node_names[0])
    settings = replace(settings, aligned=True, demand=demand)
    return replace(scenario, settings=settings, day=day, day_choices=choices.day)


def _power_curve(choices: Choices) -> PowerCurve | None:
    if not choices.power_levels:
        return None
    return read_power_curve(data_folder() / "zeus_power" / "summary_power_v100.csv")


def _gavel_truth(choices: Choices, gpus_per_node: int) -> GavelTruth:
    if choices.power_levels:
        raise InvalidSettingError(
            "--power-levels", "Gavel measured none: only eaco-nodes and traces have them"
        )
    if choices.max_residents not in {None, 1, 2}:
        problem = f"is {choices.max_residents}; expected 1 or 2, since Gavel measured pairs"
        raise InvalidSettingError("--max-residents", problem)
    pairs = data_folder() / "gavel_throughputs" / "pairs.csv"
    return read_gavel_truth(pairs, gpus_per_node, choices.power_scale)


BENCHMARKS: Mapping[str, Callable[[Choices], Scenario]] = {
    "eaco-nodes": eaco_nodes,
    "gavel-gpus": gavel_gpus,
    "order": order,
    "scale": scale,
}


def from_trace(path: Path, choices: Choices) -> Scenario:
    """Return the scenario of a trace of the user's own, on nodes with V100.

    Families ``J1`` to ``J4`` are the measured ones; any other runs by the truth's assumptions for strangers.

    :raises TraceError: if the file cannot be read, or a job is larger than a node.
    """
    trace = read_trace(path)
    gpus_per_node = choices.gpus_per_node or 8
    trace.check_fits(gpus_per_node, f"a node of {gpus_per_node} GPUs")
    truth = PaperTruth(tuple(sorted({job.family for job in trace.jobs})), _power_curve(choices))
    drawn = Workload(trace.jobs, np.random.default_rng(choices.seed))
    size = 1 if choices.nodes is None else choices.nodes, gpus_per_node
    settings = _settings(choices, max_residents=4)
    scenario = _scenario(
        path.name, choices, drawn, size=size, truth=truth, settings=settings, belief=Belief.KNOWN
    )
    return replace(scenario, trace=path)


def _settings(
    choices: Choices,
    *,
    max_residents: int,
    utilisation_limit_pct: float = 100.0,
    ordering_of: Callable[[str], Ordering] = make_ordering,
) -> PoolSettings:
    settings = PoolSettings(
        policy=choices.policy,
        ordering=choices.order,
        rules=choices.rules,
        max_residents=choices.max_residents or max_residents,
        utilisation_limit_pct=utilisation_limit_pct,
        memory_margin_mib=0,
        power_limits=PowerLimits.APPLY if choices.power_levels else PowerLimits.OFF,
        predictor=choices.predictor,
        energy_budget=choices.energy_budget,
    )
    if choices.mean_stretch is not None:
        settings = replace(settings, mean_stretch=choices.mean_stretch)
    if choices.day != USUAL_DAY and ordering_of is make_ordering:
        raise InvalidSettingError("--scenario, --demand, --oversized", "belong to the benchmark order")
    _check_names(settings, ordering_of)
    _check_levers(choices, settings)
    return settings


def _check_levers(choices: Choices, settings: PoolSettings) -> None:
    """Refuse an option that the policy would pass over: its run would be read as the option's effect."""
    levers = levers_of(make_policy(settings))
    if choices.mean_stretch is not None and Lever.MEAN_STRETCH not in levers:
        problem = f"policy {settings.policy} bounds each job's stretch, not the mean; leave the option out"
        raise InvalidSettingError("--mean-stretch", problem)
    if choices.sleep is SleepBy.POLICY:
        if choices.accounting is not Accounting.SLEEP:
            raise InvalidSettingError("--sleep policy", "needs --accounting sleep")
        if Lever.NODE_SLEEP not in levers:
            problem = f"policy {settings.policy} puts no node to sleep; leave the option out"
            raise InvalidSettingError("--sleep policy", problem)


def _scenario(
    benchmark: str,
    choices: Choices,
    workload: Workload,
    *,
    size: tuple[int, int],
    truth: Truth,
    settings: PoolSettings,
    belief: Belief,
) -> Scenario:
    return Scenario(
        benchmark=benchmark,
        jobs=workload.jobs,
        nodes=size[0],
        gpus_per_node=size[1],
        truth=truth,
        settings=settings,
        seed=choices.seed,
        accounting=choices.accounting,
        belief=choices.belief or belief,
        draws=workload.draws,
        belief_error=choices.belief_error,
        duration_error=choices.duration_error,
        sleep_by=choices.sleep,
        choices=choices,
    )


def told_work_s(scenario: Scenario) -> dict[str, float]:
    """Return by job id the run time alone that the job tells: its own, or wrong by the duration error."""
    sigma = scenario.duration_error
    wrong = scenario.draws.standard_normal(len(scenario.jobs)) if sigma else [0.0] * len(scenario.jobs)
    return {job.job_id: job.work_s * math.exp(sigma * z) for job, z in zip(scenario.jobs, wrong, strict=True)}


def levers_by_name(policy: str) -> frozenset[Lever]:
    """Return what the policy of that name moves beside placements.

    :raises InvalidSettingError: if nobody offers it.
    """
    settings = PoolSettings(policy=policy)
    _check_names(settings, make_ordering)
    return levers_of(make_policy(settings))


def _check_names(settings: PoolSettings, ordering_of: Callable[[str], Ordering]) -> None:
    """Refuse a policy or an ordering that nobody offers before anything is simulated."""
    for option, make in (
        ("--policy", lambda: make_policy(settings)),
        ("--order", lambda: ordering_of(settings.ordering)),
        ("--rule", lambda: make_rules(settings)),
    ):
        try:
            make()
        except InvalidSettingError as error:
            raise InvalidSettingError(option, error.problem) from error


def _usual(option: str, size: int, usual: Mapping[int, float]) -> float:
    if size not in usual:
        sizes = " and ".join(map(str, usual))
        raise InvalidSettingError(option, f"is needed, since only clusters of {sizes} have a usual one")
    return usual[size]


def _only(option: str, value: int | None, allowed: int, why: str) -> None:
    if value not in {None, allowed}:
        raise InvalidSettingError(option, f"{value} is not possible: {why}")
