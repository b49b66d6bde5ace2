"""What the policy ``frontier`` sees of a snapshot: sets, prices, who waits, and what may still be spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import is_

from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.prices import EnergyPrices
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
from airflow_provider_eaco.core.policy.facts import CycleFacts, is_exclusive
from airflow_provider_eaco.core.policy.frontier_members import Member, Moment, class_of, newcomer
from airflow_provider_eaco.core.policy.frontier_scene import Scenes
from airflow_provider_eaco.core.policy.frontier_worth import Classes, Worth


class View:
    """One snapshot after the other; what they share is not looked at again.

    ``worth`` weighs sets as if nobody waited.
    """

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.classes = Classes(CycleFacts(snapshot))
        self.scenes = Scenes(self.classes)
        self._prices = snapshot.prices or EnergyPrices(snapshot.now_s, 0.0)
        self.worth = Worth(self.classes, self._prices)
        self._models = Models()
        self._slack_s: float | None = None
        self._waiting: Sequence[Job] | None = None
        self._now_s = snapshot.now_s
        self._classed: dict[str, tuple[Job, int | None]] = {}
        self._number_of: dict[str, int] = {}
        self._count: Counter[int] = Counter()
        # By class, when those who wait were queued, the first last; looked up when somebody asks.
        self._queued: dict[int, list[tuple[float, str]]] | None = None

    def follow(self, snapshot: ClusterSnapshot) -> None:
        """Be about this snapshot."""
        prices = snapshot.prices or EnergyPrices(snapshot.now_s, 0.0)
        if prices is not self._prices:
            if prices.classes is not self._prices.classes or prices.stretch_w != self._prices.stretch_w:
                self.worth = Worth(self.classes, prices)
                self.scenes.forget_losses()
            self._prices, self._slack_s = prices, None
        if self._models.follow(snapshot.nodes):
            self._classed.clear()
        placed = self.scenes.follow(snapshot)
        if placed:
            self._slack_s = None
        if snapshot.waiting is not self._waiting or snapshot.now_s != self._now_s:
            self._line_up(snapshot)
        for job_id in placed:
            number = self._number_of.pop(job_id, None)
            if number is not None:
                self._count[number] -= 1

    @property
    def slack_s(self) -> float:
        """The seconds that the pool's jobs may still take longer than alone."""
        if self._slack_s is None:
            self._slack_s = self.scenes.slack_s(self._prices)
        return self._slack_s

    def newcomer(self, job: Job, now_s: float, book: ProfileBook) -> Member | None:
        """Return the job as a member on the first GPU model that it accepts and that is there."""
        model = self._models.first_of(job)
        return None if model is None else newcomer(job, model, Moment(now_s, book))

    def worth_beside(self, job: Job) -> Worth:
        """Return what sets lose while all the others wait that wait beside this job."""
        own = self._number_of.get(job.job_id)
        waiting = [number for number, count in self._count.items() if count > (number == own)]
        return self.worth.beside(tuple(sorted(waiting)))

    @property
    def waiting(self) -> int:
        """How many jobs wait that may share."""
        return len(self._number_of)

    def first_queued_s(self, job: Job) -> float:
        """Return since when the first waits of those who wait and are of this job's class."""
        if self._queued is None:
            self._queued = {}
            for job_id, number in self._number_of.items():
                self._queued.setdefault(number, []).append((self._classed[job_id][0].queued_s, job_id))
            for alike in self._queued.values():
                alike.sort(reverse=True)
        own = self._number_of.get(job.job_id)
        queued = [] if own is None else self._queued[own]
        while queued and queued[-1][1] not in self._number_of:
            queued.pop()
        return queued[-1][0] if queued else job.queued_s

    def _line_up(self, snapshot: ClusterSnapshot) -> None:
        """Count who waits by class."""
        self._waiting, self._now_s, self._queued = snapshot.waiting, snapshot.now_s, None
        present = {member.job_id for scene in self.scenes.all for member in scene.members}
        classed: dict[str, tuple[Job, int | None]] = {}
        for job in snapshot.waiting:
            known = self._classed.get(job.job_id)
            same = known is not None and known[0] is job
            classed[job.job_id] = known if same and known else (job, self._number(job))
        self._classed = classed
        self._number_of = {
            job_id: number
            for job_id, (_, number) in classed.items()
            if number is not None and job_id not in present
        }
        self._count = Counter(self._number_of.values())

    def _number(self, job: Job) -> int | None:
        """Return the class of a job that may share."""
        model = self._models.first_of(job)
        if model is None or is_exclusive(job, self.classes.facts.settings):
            return None
        return self.classes.number(class_of(job, model))


def nodes_down(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Return the nodes that sleep or wake; one of which nothing is told is up."""
    powers = snapshot.pool.node_power
    return frozenset([name for name, state in powers.items() if not state.power.is_up])


class Models:
    """The GPU models of the nodes."""

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()
        self._seen: Mapping[str, NodeState] = {}
        self._names: tuple[str, ...] = ()

    def follow(self, nodes: Mapping[str, NodeState]) -> bool:
        """Be about these nodes; return whether others are there than before."""
        if nodes is self._seen:
            return False
        self._seen = nodes
        present = tuple([state.node for state in nodes.values()])
        if len(present) == len(self._nodes) and all(map(is_, present, self._nodes)):
            return False
        self._nodes = present
        names = tuple(sorted({group.model for node in present for group in node.hardware.groups}))
        changed, self._names = names != self._names, names
        return changed

    def first_of(self, job: Job) -> str | None:
        """Return the first that the job accepts."""
        models = job.request.gpu_models
        if not models:
            return self._names[0] if self._names else None
        return next((model for model in models if model in self._names), None)
