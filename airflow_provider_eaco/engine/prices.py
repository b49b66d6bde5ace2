"""Energy prices of a pool: the duals of the configuration program over its present mix of jobs.

The mix is what runs, what waits, and what is expected since it came lately. Prices are solved at most once a
minute of the loop's own clock, only when the mix has changed, and handed in with the snapshot.

What the pool's jobs have spent of their mean stretch is kept here, from one look to the next. A new process
begins with those that run then: each stretch of time keeps the mean by itself, so that the whole does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.energy.configuration import (
    ConfigurationProgram,
    JobClass,
    SetPerformance,
    configuration_program,
)
from airflow_provider_eaco.core.energy.greedy_prices import greedy_prices
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import PowerLimits, Prices
from airflow_provider_eaco.core.model.prices import ClassKey, ClassPrice, EnergyPrices
from airflow_provider_eaco.core.model.profile import family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.frontier_members import Member, Moment, newcomer
from airflow_provider_eaco.core.policy.frontier_scene import Scenes
from airflow_provider_eaco.core.policy.frontier_worth import Classes
from airflow_provider_eaco.core.ports import EnergySolver

# Of the time that passes on the nodes, which is the clock's except on simulated ones.
SOLVE_EVERY_S = 60.0
# How long what has ended counts in the mean, and what has come in what is expected.
MEMORY_S = 7 * 24 * 3600.0
EXPECTED_S = 24 * 3600.0
# Part of the work that is spread over all known families, so that each has a price when it comes.
_PRIOR = 0.02
# The mean stretch is aimed at in steps, and a mix that has moved by less than a twentieth is the same.
_STEPS = 400
_SAME_MIX = 0.05
_LEAST_STRETCH = 1.0005
# While less than the one part of the allowance of those who run is unspent, the aim falls, at nothing by the
# other part of it.
_RESERVE = 0.15
_THRIFT = 0.5
# A second by which a run takes longer has to save at least so many times what a mean job draws alone: what
# saves less is not worth anybody's time, and binds who would save more elsewhere.
_LEAST_PRICE = 1.5
# With power limits it is less: a limit is lifted when somebody else needs the seconds, so it binds nobody.
_LEAST_PRICE_WITH_LEVELS = 0.5
# With more sets than this the largest are left out: pairs say most of what there is to say.
_MOST_SETS = 10_000
# Programs that are remembered: one for each kind of GPUs, and for the classes that were there.
_MOST_PROGRAMS = 50


@dataclass(slots=True)
class _Account:
    """What is known of one pool: who ran and who was seen at the last look, what came, what has ended."""

    at_s: float
    running: Mapping[str, tuple[Member, float]] = field(default_factory=dict)
    seen: frozenset[str] = frozenset()
    arrived_s: dict[ClassKey, float] = field(default_factory=dict)
    ended_work_s: float = 0.0
    ended_run_s: float = 0.0
    prices: EnergyPrices | None = None
    solved_for: tuple[float, Mapping[ClassKey, float], Classes] | None = None
    scenes: Scenes | None = None
    newcomers: dict[str, tuple[Job, Member]] = field(default_factory=dict)
    programs: dict[tuple[ClassKey, ...], ConfigurationProgram] = field(default_factory=dict)

    def look(
        self,
        running: Mapping[str, tuple[Member, float]],
        waiting: Mapping[str, Member],
        now_s: float,
        time_scale: float,
    ) -> None:
        """Take in who runs, each as it stood at some instant, and who waits now.

        :param time_scale: device seconds that pass in one second of the instants.
        """
        passed_s = max(0.0, now_s - self.at_s) * time_scale
        fade, forget = math.exp(-passed_s / MEMORY_S), math.exp(-passed_s / EXPECTED_S)
        self.ended_work_s *= fade
        self.ended_run_s *= fade
        self.arrived_s = {key: work_s * forget for key, work_s in self.arrived_s.items()}
        for job_id, (member, seen_s) in self.running.items():
            if member.work_s is not None and job_id not in running and job_id not in waiting:
                # It ended between two looks, as far as can be told when it was expected to.
                since_s = (now_s - seen_s) * time_scale
                self.ended_work_s += member.done_if_ended_s(since_s)
                self.ended_run_s += member.spent_s + min(since_s, member.left_s * member.slowdown)
        present = {**{job_id: member for job_id, (member, _) in running.items()}, **waiting}
        for job_id, member in present.items():
            if job_id not in self.seen:
                self.arrived_s[member.key] = self.arrived_s.get(member.key, 0.0) + member.left_s
        self.running, self.seen, self.at_s = running, frozenset(present), now_s


class EnergyPricing:
    """Keeps the accounts of pools and their prices.

    :param solver: ``None``: pools with ``prices = lp`` cannot be planned.
    """

    def __init__(self, solver: EnergySolver | None) -> None:
        self._solver = solver
        self._accounts: dict[str, _Account] = {}

    def of(self, snapshot: ClusterSnapshot) -> EnergyPrices:
        """Return the prices of the snapshot's pool.

        :raises InvalidSettingError: if the pool wants prices of a solver that is not there.
        """
        account = self._accounts.setdefault(snapshot.pool.settings.name, _Account(snapshot.now_s))
        passed_s = (snapshot.now_s - account.at_s) * _time_scale(snapshot)
        if account.prices is None or passed_s >= SOLVE_EVERY_S:
            account.prices = self._priced(account, snapshot)
        return account.prices

    def _priced(self, account: _Account, snapshot: ClusterSnapshot) -> EnergyPrices:
        scenes = _scenes(account, snapshot)
        facts = scenes.classes.facts
        running = {
            member.job_id: (member, scene.seen_s)
            for scene in scenes.all
            for member in scene.members
            if member.own
        }
        waiting = _waiting(account, snapshot)
        account.look(running, waiting, snapshot.now_s, _time_scale(snapshot))
        work_s: dict[ClassKey, float] = defaultdict(float, account.arrived_s)
        for member in (*[member for member, _ in running.values()], *waiting.values()):
            work_s[member.key] += member.left_s
        whole_s = math.fsum(work_s.values())
        told = EnergyPrices(snapshot.now_s, 0.0, {}, account.ended_work_s, account.ended_run_s)
        if whole_s <= 0:
            return told
        slack_s = scenes.slack_s(told)
        aim = _aim(account, snapshot, whole_s, slack_s)
        shares = {key: part_s / whole_s for key, part_s in work_s.items()}
        if account.prices is not None and _is_solved(account, aim, shares, scenes.classes):
            return replace(told, stretch_w=account.prices.stretch_w, classes=account.prices.classes)
        classes, stretch_w = self._solved(account, _with_prior(work_s, snapshot), aim, facts)
        account.solved_for = (aim, shares, scenes.classes)
        return replace(told, stretch_w=stretch_w, classes=classes)

    def _solved(
        self, account: _Account, work_s: Mapping[ClassKey, float], aim: float, facts: CycleFacts
    ) -> tuple[dict[ClassKey, ClassPrice], float]:
        """Return the prices of each kind of GPUs by themselves; the dearest stretch stands for all."""
        found: dict[ClassKey, ClassPrice] = {}
        stretch_w = 0.0
        limits_power = facts.settings.power_limits is PowerLimits.APPLY
        least_price = _LEAST_PRICE_WITH_LEVELS if limits_power else _LEAST_PRICE
        for model, gpus in sorted({(key.gpu_model, key.gpus) for key in work_s}):
            alone = _Performance(facts, model, gpus)
            keys = [key for key in work_s if key[1:3] == (model, gpus) and alone((key.family,))]
            if not keys:
                continue
            keys.sort(key=_in_program)
            program = _program(account, tuple(keys), work_s, facts)
            least_w = least_price * _alone_w(program)
            dearer = replace(program, power_w=program.power_w + least_w * program.presence.sum(axis=0))
            prices = [
                ClassPrice(price.work_w, price.presence_w + least_w)
                for price in self._prices_of(dearer, aim, facts.settings.prices)
            ]
            found.update(zip(keys, prices, strict=True))
            stretch_w = max(stretch_w, min(price.presence_w for price in prices))
        return found, stretch_w

    def _prices_of(self, program: ConfigurationProgram, aim: float, wanted: Prices) -> list[ClassPrice]:
        if wanted is Prices.GREEDY:
            price_w, stretch_w = greedy_prices(program, aim)
            return [ClassPrice(float(each_w), stretch_w) for each_w in price_w]
        problem = "'lp' needs scipy (extra 'analysis'); install it, or choose greedy"
        if self._solver is None:
            raise InvalidSettingError("[eaco] pools, prices", problem)
        try:
            solution = self._solver.solve(program, aim, class_limits=True)
        except ImportError as error:
            raise InvalidSettingError("[eaco] pools, prices", problem) from error
        return [
            ClassPrice(float(work_w), float(presence_w))
            for work_w, presence_w in zip(solution.price_w, solution.presence_w, strict=True)
        ]


def _aim(account: _Account, snapshot: ClusterSnapshot, whole_s: float, slack_s: float) -> float:
    """Return the mean stretch at which prices are solved.

    It is what the rest may have so that the whole keeps the pool's, never more than that unless power limits
    can spend what was left over: they are lifted again when it is needed. The less is left of
    what present jobs may spend, the lower it is, so that the last of it goes where it saves most.
    """
    limit = snapshot.pool.settings.mean_stretch
    past_work_s = account.ended_work_s + math.fsum(m.done_s for m, _ in account.running.values())
    past_run_s = account.ended_run_s + math.fsum(m.spent_s for m, _ in account.running.values())
    rest = (limit * (past_work_s + whole_s) - past_run_s) / whole_s
    if snapshot.pool.settings.power_limits is not PowerLimits.APPLY:
        rest = min(limit, rest)
    reserve_s = _RESERVE * (limit - 1) * math.fsum(m.work_s or 0.0 for m, _ in account.running.values())
    if reserve_s > 0 and slack_s < reserve_s:
        rest -= _THRIFT * (limit - 1) * (1 - slack_s / reserve_s)
    return max(_LEAST_STRETCH, 1 + round((rest - 1) * _STEPS) / _STEPS)


def _alone_w(program: ConfigurationProgram) -> float:
    """Return what the jobs draw alone, on average over their work."""
    work_s = program.work_s
    alone_w: dict[int, float] = {}
    for column, members in enumerate(program.members):
        if len(members) == 1:
            # Of several ways to run, full power is the first.
            alone_w.setdefault(members[0], float(program.power_w[column]))
    return math.fsum(alone_w[i] * float(work_s[i]) for i in alone_w) / float(work_s.sum())


def _is_solved(account: _Account, aim: float, shares: Mapping[ClassKey, float], classes: Classes) -> bool:
    """Tell whether the account's prices are those of this aim and about this mix."""
    if account.solved_for is None:
        return False
    known_aim, known, known_classes = account.solved_for
    moved = sum(abs(shares.get(key, 0.0) - known.get(key, 0.0)) for key in {*shares, *known}) / 2
    return known_aim == aim and known_classes is classes and moved < _SAME_MIX


def _in_program(key: ClassKey) -> tuple[str, float]:
    """Return the order in which a program has its classes."""
    return key.family, key.stretch_limit or math.inf


class _Performance:
    """The sets of families on GPUs of one kind, as they are predicted; a set that may not be is left out."""

    def __init__(self, facts: CycleFacts, gpu_model: str, gpus: int) -> None:
        self._facts, self._model, self._gpus = facts, gpu_model, gpus

    def __call__(self, families: tuple[str, ...]) -> tuple[SetPerformance, ...]:
        seen = self._facts.predict(family_set(families), self._model, self._gpus)
        if seen is None or seen.power_w is None:
            return ()
        busy_pct = math.inf if seen.utilisation_pct is None else seen.utilisation_pct
        if len(families) > 1 and busy_pct > self._facts.settings.utilisation_limit_pct:
            return ()
        # Beside others nobody is faster than alone, whatever is believed.
        slowdowns = [max(1.0, seen.slowdowns[name]) for name in families]
        return tuple(
            SetPerformance(
                seen.power_w * way.power_ratio, tuple(1 / (way.slowdown * slow) for slow in slowdowns)
            )
            for way in self._facts.ways(family_set(families), self._model, self._gpus)
        )


def _time_scale(snapshot: ClusterSnapshot) -> float:
    """Return how fast time passes on the pool's nodes: jobs of the fastest end soonest after a look."""
    return max((state.node.time_scale for state in snapshot.nodes.values()), default=1.0)


def _scenes(account: _Account, snapshot: ClusterSnapshot) -> Scenes:
    """Return the account's sets, as they stand in the snapshot."""
    scenes = account.scenes
    if scenes is None or not scenes.classes.follow(snapshot):
        scenes = account.scenes = Scenes(Classes(CycleFacts(snapshot)))
        account.newcomers.clear()
        account.programs.clear()
    scenes.follow(snapshot)
    return scenes


def _waiting(account: _Account, snapshot: ClusterSnapshot) -> dict[str, Member]:
    """Return those who wait, by job id; nothing of one that has not begun depends on the instant."""
    present = sorted({gpu.model for state in snapshot.nodes.values() for gpu in state.node.gpus})
    found: dict[str, tuple[Job, Member]] = {}
    for job in snapshot.waiting:
        known = account.newcomers.get(job.job_id)
        if known is not None and known[0] is job and not job.progress.units_done:
            found[job.job_id] = known
            continue
        model = next((name for name in job.request.gpu_models or present if name in present), None)
        if model is not None and job.request.gpus:
            found[job.job_id] = job, newcomer(job, model, Moment(snapshot.now_s, snapshot.profiles))
    account.newcomers = found
    return {job_id: member for job_id, (_, member) in found.items()}


def _program(
    account: _Account, keys: tuple[ClassKey, ...], work_s: Mapping[ClassKey, float], facts: CycleFacts
) -> ConfigurationProgram:
    """Return the program of these classes, which are on GPUs of one kind; only their work changes often."""
    classes = [JobClass(key.family, key.stretch_limit, work_s[key]) for key in keys]
    known = account.programs.get(keys)
    if known is None:
        performance_of = _Performance(facts, *keys[0][1:3])
        size = facts.settings.max_residents
        while size > 2 and math.comb(len(keys) + size, size) > _MOST_SETS:
            size -= 1
        known = configuration_program(classes, performance_of, size)
        if len(account.programs) >= _MOST_PROGRAMS:
            account.programs.clear()
        account.programs[keys] = known
    return replace(known, classes=tuple(classes))


def _with_prior(work_s: Mapping[ClassKey, float], snapshot: ClusterSnapshot) -> dict[ClassKey, float]:
    """Return the work with a little of every known family, under each limit that is in use."""
    limits = {key.stretch_limit for key in work_s}
    scopes = {key[1:3] for key in work_s}
    known = {
        ClassKey(profile.families[0], profile.gpu_model, profile.gpu_count, limit)
        for profile in snapshot.profiles.solo
        if (profile.gpu_model, profile.gpu_count) in scopes
        for limit in limits
    }
    extra_s = _PRIOR * math.fsum(work_s.values()) / max(1, len(known))
    both = sorted({*known, *work_s}, key=lambda key: (key[:3], _in_program(key)))
    return {key: work_s.get(key, 0.0) + (extra_s if key in known else 0.0) for key in both}
