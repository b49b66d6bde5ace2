"""How a GPU pool is set up: which nodes, how far we act, by which policy and ordering, which limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from airflow_provider_eaco.core.model.energy_budget import EnergyBudget, Shift


class PoolMode(StrEnum):
    """How far the provider acts for a pool.

    ``OFF``: tasks pass through untouched. ``OBSERVE``: they run as before, and what would have been decided
    is recorded; a sampler on their machine meters them. ``EXCLUSIVE``: GPUs are granted, never shared.
    ``SHARE``: the pool's policy decides.
    """

    OFF = "off"
    OBSERVE = "observe"
    EXCLUSIVE = "exclusive"
    SHARE = "share"


class Spreading(StrEnum):
    """Which free GPUs are taken first. ``PACK`` leaves the most GPUs and nodes idle, ``SPREAD`` the fewest
    busy ones per node; a ``PACK`` pool also prefers joining a set to taking free GPUs.
    """

    PACK = "pack"
    SPREAD = "spread"


class TeamSource(StrEnum):
    """What makes jobs one team: their Airflow pool, their DAG bundle, or their DAG."""

    POOL = "pool"
    BUNDLE = "bundle"
    DAG = "dag"


class PredictorName(StrEnum):
    """By what unmeasured sets are predicted.

    ``CONSERVATIVE``: published rules over the members alone, and a fixed error. ``LEARNED``: the measured
    sets that resemble them, with an error for each; the conservative rule until there are enough.
    """

    CONSERVATIVE = "conservative"
    LEARNED = "learned"


class PowerLimits(StrEnum):
    """Whether GPUs may be held below their board's own limit.

    ``OFF``: no limit is planned. ``ADVISE``: limits are planned and shown, and the hardware stays as it is.
    ``APPLY``: they are set.
    """

    OFF = "off"
    ADVISE = "advise"
    APPLY = "apply"


class StrangerAction(StrEnum):
    """What follows when somebody else begins to use a GPU that a task holds.

    ``ALERT``: it is told in the log, and the task goes on. ``YIELD``: a task that saves checkpoints is asked
    to leave at its next unit boundary; it waits for another GPU.
    """

    ALERT = "alert"
    YIELD = "yield"


class MemoryGrowth(StrEnum):
    """What follows when a task takes more GPU memory than it was admitted with.

    ``WARN``: it is told, in the log, the task's story and its own log. ``STOP``: beside others it is ended,
    too, once it is beyond the pool's margin, so that its neighbours do not run out of memory.
    """

    WARN = "warn"
    STOP = "stop"


class Prices(StrEnum):
    """Where the policy ``frontier`` has its energy prices from.

    ``GREEDY``: each class of jobs is worth its share of the best set that it can be in. ``LP``: the duals of
    the configuration program over the present mix, which need scipy.
    """

    GREEDY = "greedy"
    LP = "lp"


@dataclass(frozen=True, slots=True)
class DemandCurve:
    """GPUs of a node that serve something else, in each hour of the day (UTC): the first ones, by index."""

    node: str
    gpus_by_hour: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FairShare:
    """How the rule ``fair_share`` divides a pool.

    Past GPU seconds count half after every ``half_life_s``. ``shares`` are weights (a team that is not named
    has 1), ``quotas_gpu_h`` the decayed GPU hours that a team may have used (not named: no quota). With
    ``borrowing`` a team beyond its quota still gets what nobody within theirs can use.
    """

    by: TeamSource = TeamSource.POOL
    half_life_s: float = 24 * 3600.0
    shares: tuple[tuple[str, float], ...] = ()
    quotas_gpu_h: tuple[tuple[str, float], ...] = ()
    borrowing: bool = True


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """One declared GPU pool. The name is also the name of the Airflow pool that routes tasks here.

    ``nodes`` are shell patterns over node names. ``memory_margin_mib`` is kept free on every GPU beside all
    requested peaks. A set may not be joined above ``utilisation_limit_pct`` (sum of the members' mean GPU
    utilisation, the newcomer included). Jobs at or above ``exclusive_priority`` get GPUs of their own.
    A trial without enough reports ends after ``trial_limit_s`` of wall time. ``estimate_error`` is added to
    the slowdown of a set that was never measured, and ``predictor`` says how that is predicted (``None``: as
    the policy does by itself). A job that no GPU of the inventory fits is rejected once
    it has been queued for ``reject_after_s`` of wall time; until then it holds (a worker may be restarting).

    ``rules`` are names of rules that hold under any ordering, as ADR 0009 says: under ``ageing``, waiting
    ``ageing_s`` is worth one point of priority; under ``reserve``, a job that was passed over and has waited
    ``reserve_after_s`` gets a reservation; ``fair_share`` has its own settings. With ``aligned``, GPUs are
    taken as contiguous blocks that start at a multiple of the next power of two. ``demand`` keeps GPUs for
    real-time services by the hour. ``strangers`` says what follows when somebody else uses a held GPU,
    ``memory_growth`` when a task takes more memory than it was admitted with.

    Levers of policies that know them: ``mean_stretch`` bounds the work-weighted mean of run time / exclusive
    run time of the pool's jobs, ``power_limits`` says whether GPUs may be held below their board's limit,
    ``prices`` where energy prices come from.

    Under any policy ``energy_budget`` bounds what the pool draws and uses in a day, and ``shift`` says how
    long jobs that allow it wait for a better hour (``None``: there is no series to go by).
    """

    name: str = "eaco"
    nodes: tuple[str, ...] = ("*",)
    mode: PoolMode = PoolMode.SHARE
    policy: str = "eaco"
    ordering: str = "fifo"
    spreading: Spreading = Spreading.PACK
    max_residents: int = 4
    memory_margin_mib: int = 512
    utilisation_limit_pct: float = 100.0
    exclusive_priority: int | None = None
    trial_limit_s: float = 4 * 3600.0
    estimate_error: float = 0.05
    predictor: PredictorName | None = None
    reject_after_s: float = 300.0
    rules: tuple[str, ...] = ()
    ageing_s: float = 3600.0
    reserve_after_s: float = 0.0
    fair_share: FairShare = field(default_factory=FairShare)
    aligned: bool = False
    demand: tuple[DemandCurve, ...] = ()
    strangers: StrangerAction = StrangerAction.ALERT
    memory_growth: MemoryGrowth = MemoryGrowth.STOP
    mean_stretch: float = 1.03
    power_limits: PowerLimits = PowerLimits.OFF
    prices: Prices = Prices.LP
    energy_budget: EnergyBudget | None = None
    shift: Shift | None = None
