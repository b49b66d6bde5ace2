"""Decisions: what was decided about a kind of job, and why, as values that every surface shows alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from airflow_provider_eaco.core.model.alternative import Alternative
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.quick_init import quick_init


class Verdict(StrEnum):
    """``HOLD`` may fit later; ``REJECT`` can never fit."""

    ADMIT = "admit"
    HOLD = "hold"
    REJECT = "reject"


class Reason(Enum):
    """Why a job is not running yet. The order of the members is their severity, most severe first.

    Each member holds its code, the sentence that says when it applies (with room for numbers) and what would
    change it. Codes are stored and shown; sentences are rendered from :class:`Finding`.
    """

    # Whoever finds it writes the whole sentence: what cannot be used, why, and what follows.
    MISCONFIGURED = ("misconfigured", "{problem}", "correct what is named")
    EXCEEDS_POOL = (
        "exceeds_pool",
        "the task takes {pool_slots} slots, the Airflow pool {pool} has {slots} in all",
        "raise the pool's slots or lower the task's pool_slots",
    )
    NO_SUCH_GPU = (
        "no_such_gpu",
        "never fits: {wanted} asked, the largest usable is {largest}",
        "ask for less, or add a node that has it",
    )
    POOL_UNKNOWN = (
        "pool_unknown",
        "the Airflow pool {pool} does not exist",
        "create the pool or correct its name; the task then runs without being cleared",
    )
    DEADLINE_UNREACHABLE = (
        "deadline_unreachable",
        "alone it would end {late_s:.0f} s after its deadline",
        "extend the deadline; it can be met by no placement",
    )
    ON_HOLD = ("on_hold", "held by a user", "release it")
    POOL_CLOSED = (
        "pool_closed",
        "the Airflow pool {pool} lets {slots} slots run and {used} are in use",
        "raise the pool's slots, or wait until running tasks end",
    )
    NO_WORKER = (
        "no_worker",
        "no GPU worker is registered for pool {pool}",
        "start a worker or a scheduler with GPUs",
    )
    DRAINING = ("draining", "every fitting node is draining: {nodes}", "end the drain")
    GPU_UNHEALTHY = ("gpu_unhealthy", "the fitting GPUs are not healthy: {gpus}", "repair or replace them")
    BOOKED = (
        "booked",
        "fitting GPUs are booked by somebody outside Airflow, beside whom nothing starts: {bookings}",
        "wait until the booking ends, or end it with `airflow eaco unbook`",
    )
    FOREIGN_USE = (
        "foreign_use",
        "the fitting GPUs are used by somebody else: {foreign_mib} MiB on node {node}, processes: {who}",
        "it is admitted when they leave",
    )
    HOST_MEMORY = (
        "host_memory",
        "{wanted_mib} MiB of host memory asked, {free_mib} MiB free on the best node",
        "wait for a running task to end",
    )
    MEMORY_WOULD_OVERFLOW = (
        "memory_would_overflow",
        "needs {needed_mib} MiB per GPU with margin, the best candidate has {free_mib} of {usable_mib} MiB",
        "wait for a resident to end, or ask for less memory",
    )
    RESIDENT_LIMIT = ("resident_limit", "every candidate has {limit} residents", "wait for a resident to end")
    RESIDENT_DEADLINE_AT_RISK = (
        "resident_deadline_at_risk",
        "a resident would miss its limit: {who} would take {predicted:.3f} times as long as alone, {bears}",
        "wait for that resident to end",
    )
    INTERFERENCE_TOO_HIGH = (
        "interference_too_high",
        (
            "the best set would slow it {predicted:.3f} times and ask for {utilisation_pct:.0f} % of the "
            "GPUs' time; allowed: {limit}"
        ),
        "raise the task's max_stretch or the pool's utilisation_limit_pct, or wait for free GPUs",
    )
    NO_ENERGY_GAIN = (
        "no_energy_gain",
        "a unit would take {shared_j:.0f} J shared, {alone_j:.0f} J alone",
        "wait for free GPUs",
    )
    PROFILE_MISSING = (
        "profile_missing",
        "no profile of {family} on {gpu_model}: {consequence}",
        "wait for free GPUs; the run becomes its profile",
    )
    RESERVED_FOR_EARLIER_JOB = (
        "reserved_for_earlier_job",
        "free GPUs kept for an earlier or higher-priority job: {free}; it waits for {wanted}",
        "wait until that job has started",
    )
    NODE_WAKING = ("node_waking", "node {node} is waking up", "wait until it is up")
    WAITING_FOR_PARTNER = (
        "waiting_for_partner",
        "a better partner is expected at {expected_s:.0f} s",
        "wait; the job's own limit bounds it",
    )
    OVER_QUOTA = (
        "over_quota",
        "{team} has used {used:.1f} of {quota:.1f} GPU hours",
        "wait for the quota to recover",
    )
    OVER_ENERGY_BUDGET = (
        "over_energy_budget",
        "energy budget of pool {pool}: {case}",
        "wait until a running task or the day (UTC) ends, or raise the budget",
    )
    WAITING_FOR_ENERGY = (
        "waiting_for_energy",
        (
            "the {series} is {now}, above {limit} ({factor} times its mean of the next {hours} h); "
            "it is better at {better}; the task waits at most {most} h in all, and less for its deadline"
        ),
        "wait, or clear shiftable in its request and run it again",
    )
    WAITING_FOR_GPU = (
        "waiting_for_gpu",
        "GPUs asked on one node: {wanted}, free on the best: {free}; no sharing there: {sharing}",
        "wait for a running task to end",
    )
    BEHIND_IN_QUEUE = (
        "behind_in_queue",
        "it fits, but jobs before it took the places of this cycle",
        "wait for the next cycle",
    )

    def __init__(self, code: str, sentence: str, remedy: str) -> None:
        self.code = code
        self.sentence = sentence
        self.remedy = remedy
        # Rank among all reasons; 0 is the most severe and is shown first.
        self.severity = len(type(self).__members__)

    # There is one object a member, so identity will do; the enum's own hash is computed in Python each time.
    __hash__ = object.__hash__

    @classmethod
    def from_code(cls, code: str) -> Reason:
        """Return the member with this code.

        :raises ValueError: if there is none.
        """
        for member in cls:
            if member.code == code:
                return member
        raise ValueError(f"unknown reason code {code!r}")


class _UnknownNumber:
    """Reads ``unknown`` in whatever format the sentence has for the number."""

    def __format__(self, spec: str) -> str:
        return "unknown"


_UNKNOWN = _UnknownNumber()


class _Numbers(dict[str, object]):
    def __missing__(self, key: str) -> object:
        return _UNKNOWN


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason with the numbers of this case; ``text`` is the same sentence in UI, CLI and audit log."""

    reason: Reason
    numbers: Mapping[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        values = {k: (_UNKNOWN if v is None else v) for k, v in self.numbers.items()}
        try:
            return self.reason.sentence.format_map(_Numbers(values))
        except (ValueError, TypeError):
            # Somebody's policy gave words where the sentence has a number.
            return ", ".join(f"{k}={v}" for k, v in sorted(values.items()))


@quick_init
@dataclass(frozen=True, slots=True)
class SetPrediction:
    """What is expected of a resident set.

    ``slowdowns`` per family; ``power_w`` of the whole placement; ``measured`` tells a measured set from an
    estimated one; ``error`` is the relative error that was already added to the slowdowns of an estimate (the
    largest of its members). ``undone`` counts the trials of exactly this set that were undone.

    ``slowdowns`` and ``power_w`` are the careful figures, which limits are held against. What is as likely to
    be exceeded as not stands in ``expected`` and ``expected_power_w``, where a predictor tells it.
    """

    slowdowns: Mapping[str, float]
    power_w: float | None
    utilisation_pct: float | None
    measured: bool
    error: float = 0.0
    undone: int = 0
    expected: Mapping[str, float] | None = None
    expected_power_w: float | None = None

    @property
    def expected_slowdowns(self) -> Mapping[str, float]:
        """The slowdowns to reckon energy with: the expected ones, else the only ones there are."""
        return self.slowdowns if self.expected is None else self.expected

    @property
    def joint_power_w(self) -> float | None:
        """The draw to reckon energy with: the expected one, else the only one there is."""
        return self.power_w if self.expected_power_w is None else self.expected_power_w


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """The answer for one kind of job in one cycle.

    ``findings`` are sorted by severity and kept whole; ``placement`` is set exactly when admitted;
    ``co_residents`` are the job ids that already run there (empty: the job runs alone); ``choice`` says in
    one sentence why this placement was taken before others, empty unless admitted. ``notes`` are what is to
    be known of an admission all the same, such as a budget that warns. ``alternatives`` are the other ways
    for the job to run, once somebody has asked for them: a plan carries none.
    """

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    placement: Placement | None = None
    co_residents: tuple[str, ...] = ()
    prediction: SetPrediction | None = None
    choice: str = ""
    notes: tuple[Finding, ...] = ()
    alternatives: tuple[Alternative, ...] = ()

    @property
    def reason(self) -> Reason | None:
        """The most severe reason, ``None`` for an admission."""
        return self.findings[0].reason if self.findings else None


def hold(*findings: Finding) -> AdmissionDecision:
    """Return a hold whose findings are ordered by severity, each reason once."""
    return AdmissionDecision(Verdict.HOLD, _ordered(findings))


def reject(*findings: Finding) -> AdmissionDecision:
    """Return a rejection whose findings are ordered by severity, each reason once."""
    return AdmissionDecision(Verdict.REJECT, _ordered(findings))


def _ordered(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    first_of: dict[Reason, Finding] = {}
    for finding in findings:
        first_of.setdefault(finding.reason, finding)
    return tuple(sorted(first_of.values(), key=lambda finding: finding.reason.severity))
