"""The paper's cluster by a second, plain program, and what each open point of the paper is worth there.

It was written from the text of the benchmark and shares no code with the policies, the engine or the
simulated cluster: nodes that jobs share, a queue that is worked off at every arrival, end and epoch. Like the
live engine it judges limits by what was done up to the last epoch that a job has finished.
``python -m tests.simulation.plain_choices`` prints its tables.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from tests.simulation.paper_rules import ALONE, paper_truth

IDLE_W, ASLEEP_W = 392.0, 15.0
SLEEP_AFTER_S, WAKE_S = 300.0, 120.0
# Less is a rounding error.
NO_WORK_S = 1e-6
SHOWN_PCT = {
    ("J1", "J3"): 40.25,
    ("J1", "J4"): 55.16,
    ("J2", "J4"): 61.06,
    ("J1", "J2", "J3"): 52.24,
    ("J1", "J2", "J4"): 66.99,
    ("J1", "J2", "J3", "J4"): 96.64,
}


@dataclass(frozen=True, slots=True)
class Choices:
    """How the points that the paper leaves open are closed; the defaults are those of ADR 5.

    ``trials_close``: a set takes nobody until all members have finished an epoch under it. ``asked``: the
    utilisation threshold counts the sum of what members take alone, not what a set was seen to take.
    ``credit``: a limit holds for the whole run, time saved so far included, not for the set's slowdown.
    ``passing``: who cannot join a set is passed by those who can. ``gain``: joining has to save energy.
    """

    policy: str = "eaco"
    max_residents: int = 4
    sleep: bool = False
    trials_close: bool = False
    asked: bool = True
    threshold_pct: float = 100.0
    credit: bool = True
    passing: bool = True
    gain: bool = True
    by_power: bool = False


@dataclass(slots=True, eq=False)
class PlainJob:
    """A job; ``left_s`` of exclusive work as of its node's last event.

    ``told_left_s`` and ``told_ran_s`` are what it said at the end of its last epoch.
    """

    family: str
    submit_s: float
    work_s: float
    limit: float | None
    epoch_s: float = field(init=False)
    left_s: float = field(init=False)
    told_left_s: float = field(init=False)
    told_ran_s: float = 0.0
    epochs: int = 0
    watched_from: int = 0
    start_s: float = math.nan
    end_s: float = math.nan

    def __post_init__(self) -> None:
        self.left_s = self.told_left_s = self.work_s
        self.epoch_s = min(1404.0, self.work_s / 5)

    def left_of_epoch_s(self) -> float:
        """Return the work until the present epoch or the whole job ends."""
        return max(0.0, min((self.epochs + 1) * self.epoch_s, self.work_s) - self.work_s + self.left_s)

    def watch(self) -> None:
        """Begin to watch: an epoch counts if it begins after now, the first one if it begins now."""
        begun = math.floor((self.work_s - self.left_s) / self.epoch_s + 1e-9)
        self.watched_from = 0 if self.left_s == self.work_s else begun + 1

    def was_watched(self) -> bool:
        """Tell whether an epoch was finished since."""
        return self.epochs > self.watched_from

    def tell(self, now_s: float) -> None:
        """Finish an epoch if it is at the end of one."""
        if self.left_of_epoch_s() <= NO_WORK_S:
            self.epochs += 1
            self.told_left_s = self.work_s - self.epochs * self.epoch_s
            self.told_ran_s = now_s - self.start_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run took: energy, sum of run times / sum of work, mean wait, and how many limits broke."""

    energy_j: float
    mean_stretch: float
    mean_wait_s: float
    limit_misses: int


@cache
def performance(families: tuple[str, ...]) -> tuple[float, float]:
    """Return watts of the node, and the rate that all members have."""
    power_w, rates = paper_truth(families, 8)
    return power_w, rates[0]


@cache
def asked_pct(families: tuple[str, ...]) -> float:
    """Return what the members take of a GPU's time when each is alone."""
    return math.fsum(ALONE[family][1] for family in families)


@cache
def shown_pct(families: tuple[str, ...]) -> float:
    """Return what was measured together, else the sum: no GPU shows more than 100 %."""
    return SHOWN_PCT.get(families, min(100.0, asked_pct(families)))


@dataclass(slots=True, eq=False)
class PlainNode:
    """A node with its residents; ``energy_j`` and their work are up to ``since_s``."""

    sleep: bool
    residents: list[PlainJob] = field(default_factory=list)
    since_s: float = 0.0
    idle_since_s: float = 0.0
    up_s: float = 0.0
    energy_j: float = 0.0
    stamp: int = 0
    families: tuple[str, ...] = ()

    def advance(self, now_s: float) -> None:
        if now_s <= self.since_s:
            return
        if not self.residents:
            asleep_from_s = self.idle_since_s + SLEEP_AFTER_S if self.sleep else math.inf
            on_s = max(0.0, min(now_s, asleep_from_s) - self.since_s)
            self.energy_j += IDLE_W * on_s + ASLEEP_W * (now_s - self.since_s - on_s)
        else:
            power_w, rate = performance(self.families)
            waking_s = max(0.0, min(now_s, self.up_s) - self.since_s)
            running_s = now_s - self.since_s - waking_s
            self.energy_j += IDLE_W * waking_s + power_w * running_s
            for job in self.residents:
                job.left_s -= rate * running_s
        self.since_s = now_s

    def add(self, job: PlainJob, now_s: float) -> None:
        self.advance(now_s)
        if not self.residents:
            asleep = self.sleep and now_s >= self.idle_since_s + SLEEP_AFTER_S
            self.up_s = now_s + WAKE_S if asleep else now_s
        self.residents.append(job)
        job.start_s = max(now_s, self.up_s)
        self._change()

    def pass_point(self, now_s: float) -> int:
        """Let jobs end and finish epochs; return how many have ended."""
        self.advance(now_s)
        ended = [job for job in self.residents if job.left_s <= NO_WORK_S]
        for job in ended:
            job.end_s = now_s
            self.residents.remove(job)
        for job in self.residents:
            job.tell(now_s)
        if ended:
            self._change()
        if not self.residents:
            self.idle_since_s = now_s
        return len(ended)

    def next_point_s(self) -> float:
        """Return when the next resident ends or finishes an epoch."""
        work_s = min(min(job.left_of_epoch_s(), job.left_s) for job in self.residents)
        return max(self.since_s, self.up_s) + work_s / performance(self.families)[1]

    def in_trial(self) -> bool:
        """Tell whether somebody has not finished an epoch under this set."""
        return len(self.residents) > 1 and not all(job.was_watched() for job in self.residents)

    def _change(self) -> None:
        self.families = tuple(sorted(job.family for job in self.residents))
        for job in self.residents:
            job.watch()


class PlainCluster:
    """The run. Nodes are looked at by number, jobs by submission."""

    def __init__(self, jobs: Sequence[PlainJob], nodes: int, choices: Choices) -> None:
        self._jobs = jobs
        self._choices = choices
        self._nodes = [PlainNode(choices.sleep) for _ in range(nodes)]
        self._queue: list[PlainJob] = []
        self._events: list[tuple[float, int, int]] = []
        # Nodes at which something happened, in order, and how many of them a kind of job was refused by.
        self._touched: list[int] = []
        self._refused: dict[tuple[str, float | None], int] = {}

    def run(self) -> Outcome:
        arrivals = sorted(self._jobs, key=lambda job: job.submit_s)
        left, came, now_s = len(arrivals), 0, 0.0
        while left:
            next_s = arrivals[came].submit_s if came < len(arrivals) else math.inf
            now_s = min(next_s, self._next_event_s())
            left -= self._pass_events(now_s)
            while came < len(arrivals) and arrivals[came].submit_s <= now_s:
                self._queue.append(arrivals[came])
                came += 1
            self._place(now_s)
        for node in self._nodes:
            node.advance(now_s)
        return outcome_of(self._jobs, math.fsum(node.energy_j for node in self._nodes))

    def _next_event_s(self) -> float:
        while self._events and self._nodes[self._events[0][1]].stamp != self._events[0][2]:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else math.inf

    def _pass_events(self, now_s: float) -> int:
        ended = 0
        while self._next_event_s() <= now_s:
            _, number, _ = heapq.heappop(self._events)
            ended += self._nodes[number].pass_point(now_s)
            self._expect(number)
        return ended

    def _expect(self, number: int) -> None:
        node = self._nodes[number]
        node.stamp += 1
        self._touched.append(number)
        if node.residents:
            heapq.heappush(self._events, (node.next_point_s(), number, node.stamp))

    def _place(self, now_s: float) -> None:
        """Work the queue off; the first who waits keeps idle nodes from all behind, and sets as chosen."""
        waiting: list[PlainJob] = []
        for job in self._queue:
            number = None
            if not waiting or (self._choices.passing and self._may_have_changed(job)):
                number = self._find(job, may_open=not waiting)
            if number is None:
                waiting.append(job)
                continue
            self._nodes[number].add(job, now_s)
            self._expect(number)
        self._queue = waiting

    def _may_have_changed(self, job: PlainJob) -> bool:
        return self._refused.get((job.family, job.limit)) != len(self._touched)

    def _find(self, job: PlainJob, may_open: bool) -> int | None:
        free = self._first_idle() if may_open else None
        if self._choices.policy == "exclusive":
            return free
        if self._choices.policy == "fifo_packed":
            return self._join(job, self._pairs_well) if free is None else free
        joined = self._join(job, self._suits)
        return free if joined is None else joined

    def _first_idle(self) -> int | None:
        return next((number for number, node in enumerate(self._nodes) if not node.residents), None)

    def _join(self, job: PlainJob, worth: Callable[[PlainJob, PlainNode], float | None]) -> int | None:
        """Return the node of most worth, the first of equal ones; ``None`` if none is worth joining.

        Whoever was refused everywhere asks only where something happened since.
        """
        kind = job.family, job.limit
        asked = self._refused.get(kind)
        numbers = range(len(self._nodes)) if asked is None else sorted(set(self._touched[asked:]))
        best, most = None, -math.inf
        for number in numbers:
            value = worth(job, self._nodes[number])
            if value is not None and value > most:
                best, most = number, value
        if best is None:
            self._refused[kind] = len(self._touched)
        else:
            self._refused.pop(kind, None)
        return best

    def _pairs_well(self, job: PlainJob, node: PlainNode) -> float | None:
        """Return what Gavel's FIFO with packing ranks by: how fast the pair is, if that is above 1.5."""
        if len(node.families) != 1:
            return None
        combined = 2 * performance(tuple(sorted((*node.families, job.family))))[1]
        return round(combined, 12) if combined > 1.5 else None

    def _suits(self, job: PlainJob, node: PlainNode) -> float | None:
        """Return what EaCO ranks by: how busy the set is that the job may join."""
        if not node.families or not self._may_join(job, node):
            return None
        return performance(node.families)[0] if self._choices.by_power else shown_pct(node.families)

    def _may_join(self, job: PlainJob, node: PlainNode) -> bool:
        slowdown = slowdown_of_joining(node.families, job.family, self._choices)
        if slowdown is None or (self._choices.trials_close and node.in_trial()):
            return False
        return all(self._bears(each, slowdown) for each in (*node.residents, job))

    def _bears(self, job: PlainJob, slowdown: float) -> bool:
        if job.limit is None:
            return True
        if not self._choices.credit:
            return slowdown <= job.limit
        return job.told_ran_s + job.told_left_s * slowdown <= job.limit * job.work_s + NO_WORK_S


@cache
def slowdown_of_joining(before: tuple[str, ...], family: str, choices: Choices) -> float | None:
    """Return how all slow down if the family joins, ``None`` if the set is full, too busy or no gain."""
    after = tuple(sorted((*before, family)))
    if len(after) > choices.max_residents:
        return None
    busy_pct = max(asked_pct(after), shown_pct(after)) if choices.asked else shown_pct(after)
    if busy_pct > choices.threshold_pct or (choices.gain and not saves(before, family, after)):
        return None
    return 1 / performance(after)[1]


def saves(before: tuple[str, ...], family: str, after: tuple[str, ...]) -> bool:
    """Tell whether the newcomer's work adds fewer joules to the set than it takes alone."""
    old_w, old_rate = performance(before)
    new_w, new_rate = performance(after)
    return (new_w - old_w * new_rate / old_rate) / new_rate < ALONE[family][0]


def outcome_of(jobs: Sequence[PlainJob], energy_j: float) -> Outcome:
    """Return the figures of a run whose jobs have ended."""
    runs = [(job, job.end_s - job.start_s) for job in jobs]
    misses = sum(job.limit is not None and run_s > job.limit * job.work_s + 0.01 for job, run_s in runs)
    stretch = math.fsum(run_s for _, run_s in runs) / math.fsum(job.work_s for job in jobs)
    wait_s = math.fsum(job.start_s - job.submit_s for job in jobs) / len(jobs)
    return Outcome(energy_j, stretch, wait_s, misses)


def simulate(jobs: Iterable[PlainJob], nodes: int, choices: Choices) -> Outcome:
    """Return the outcome of the jobs, each on the 8 GPUs of a node; they are not changed."""
    fresh = [PlainJob(job.family, job.submit_s, job.work_s, job.limit) for job in jobs]
    return PlainCluster(fresh, nodes, choices).run()
