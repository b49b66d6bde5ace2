"""A node's agent: begins what it may, watches what it has begun, and tells both.

One thread does all of it, so that between a question to the API and what follows from its answer nothing else
happens. The provider's API is the authority: what it does not list any more is ended here, and what this node
cannot ask about does not begin.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from airflow_provider_eaco.core.model.board_limits import NodeLimits
from airflow_provider_eaco.core.model.errors import LaunchError, NotReadyError
from airflow_provider_eaco.core.model.gpu import GpuHealth, Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim, RunNews, RunState, ValidRun
from airflow_provider_eaco.core.ports import Dispatcher, LaunchOrder, Occupant
from airflow_provider_eaco.engine.strangers import used_before_start
from airflow_provider_eaco.provider.limit_requests import Limiter
from airflow_provider_eaco.provider.memory_return import Memory, MemoryReturn
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.provider.worker_api import NodeApiError
from airflow_provider_eaco.provider.worker_claims import Claims, Ordered
from airflow_provider_eaco.provider.worker_energy import UseOfRuns
from airflow_provider_eaco.provider.worker_limits import WorkerLimits
from airflow_provider_eaco.provider.worker_register import Run

log = logging.getLogger(__name__)

# How soon the end of a run is seen; a look costs one read of /proc.
_LOOK_S = 0.2
# An order that cannot be asked about, or begun, is tried again this often and given up after this long: the
# scheduler has taken it back by then.
_RETRY_S = 0.5
_GIVE_UP_S = 120.0
_DEFAULT_GRACE_S = 10.0
# The log says at most this often that the API cannot be reached.
_COMPLAIN_S = 30.0
# How long a worker that leaves waits for its limits to be lifted, before it tells so.
_LIFT_S = 5.0


class Api(Protocol):
    """The provider's API as the agent needs it."""

    @property
    def interval_s(self) -> float: ...

    def claim(self, job_id: str, token: int) -> RunClaim | None: ...

    def report(self, report: NodeReport) -> NodeAnswer: ...


class Register(Protocol):
    """What outlives the agent."""

    @property
    def runs(self) -> frozenset[Run]: ...

    def add(self, run: Run) -> None: ...

    def drop(self, runs: Collection[Run]) -> None: ...


@dataclass(frozen=True, slots=True)
class Machine:
    """What the agent works with on its machine.

    ``order`` makes the order of a claimed run from its payload; ``find`` returns the reference of a living
    run, whoever began it; ``limiter`` sets power limits on its boards.
    """

    node: str
    name: str
    meter: NodeMeter
    dispatcher: Dispatcher
    order: Callable[[RunClaim, str], LaunchOrder]
    find: Callable[[str, int], str | None]
    limiter: Limiter


@dataclass(slots=True)
class _Begun:
    """A run whose processes live, or did at the last look; of one that was found its GPUs are not known
    before the API has told.
    """

    job_id: str
    token: int
    reference: str
    placement: Placement | None
    is_ending: bool = False


@dataclass(slots=True)
class _Memory:
    begun: dict[int, _Begun] = field(default_factory=dict)
    news: dict[int, RunNews] = field(default_factory=dict)
    limits: NodeLimits | None = None
    reported_s: float = float("-inf")
    complained_s: float = float("-inf")
    is_answered: bool = False
    is_unheard: bool = False
    leaving: bool = False


class NodeAgent:
    """The agent of one node. All methods but :meth:`take` and :meth:`stop` are for its own thread."""

    def __init__(
        self,
        machine: Machine,
        api: Api,
        register: Register,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine = machine
        self._api = api
        self._register = register
        self._monotonic = monotonic
        self._inbox: queue.SimpleQueue[Mapping[str, object] | None] = queue.SimpleQueue()
        self._is_stopped = False
        self._memory = _Memory()
        self._use = UseOfRuns(machine.meter, monotonic)
        self._limits = WorkerLimits(machine.limiter, monotonic)
        self._claims = Claims(api, self._limits, self._note, monotonic)
        self._returns = MemoryReturn([machine.meter], monotonic)

    # -- For other threads

    def take(self, message: Mapping[str, object]) -> None:
        """Take in a message from the node's queue; returns at once."""
        self._inbox.put(message)

    def stop(self) -> None:
        """Have :meth:`run` tell that the node takes nothing new, and return; runs go on."""
        self._is_stopped = True
        self._inbox.put(None)

    # -- The thread

    def run(self) -> None:
        """Work until :meth:`stop`."""
        self.recover()
        while not self._is_stopped:
            self.step()
            self._wait()
        self._memory.leaving = True
        self._limits.close(_LIFT_S)
        self._report()

    def recover(self) -> None:
        """Find the runs again that an earlier worker of this node has begun."""
        gone = []
        for job_id, token in sorted(self._register.runs):
            reference = self._machine.find(job_id, token)
            if reference is None:
                gone.append((job_id, token))
            else:
                log.info("Found a run that lives: job_id=%s token=%s reference=%s", job_id, token, reference)
                self._note_begun(job_id, token, reference, None)
        self._register.drop(gone)

    def step(self) -> None:
        """Carry out what was ordered, look after what runs, and report where that is due."""
        while not self._inbox.empty():
            self._read(self._inbox.get())
        for order in list(self._claims.ordered):
            if order.try_again_s <= self._monotonic():
                self._carry_out(order)
        self._look()
        self._limits.step(lambda: [gpu.uuid for gpu in self._node().gpus], self._held())
        due = self._monotonic() - self._memory.reported_s >= self._api.interval_s
        has_news = self._memory.news or self._limits.told() != self._memory.limits
        if due or (has_news and not self._memory.is_unheard):
            self._report()

    def _wait(self) -> None:
        wait_s = _LOOK_S if self._memory.begun or self._claims.ordered else self._api.interval_s
        try:
            self._read(self._inbox.get(timeout=min(wait_s, self._api.interval_s)))
        except queue.Empty:
            return

    def _read(self, message: Mapping[str, object] | None) -> None:
        if message is None:
            return
        job_id, token, payload = (message.get(name) for name in ("job_id", "token", "payload"))
        well_formed = isinstance(job_id, str) and isinstance(token, int) and isinstance(payload, str)
        if message.get("v") != 1 or not well_formed:
            log.warning("A message of another kind is left out: keys=%s", sorted(message))
            return
        self._claims.take(str(job_id), int(str(token)), str(payload))

    # -- Beginning

    def _carry_out(self, order: Ordered) -> None:
        """Ask, and begin; what cannot be asked or begun now is tried again."""
        if self._monotonic() - order.came_s > _GIVE_UP_S or order.token in self._memory.begun:
            self._claims.ordered.remove(order)
            return
        try:
            claim = self._claims.may_begin(order)
            if claim is None:
                return
            self._begin(claim, order.payload)
        except (NotReadyError, NodeApiError) as error:
            log.debug("Not begun yet: job_id=%s token=%s why=%s", order.job_id, order.token, error)
            order.try_again_s = self._monotonic() + _RETRY_S
            return
        self._claims.ordered.remove(order)

    def _begin(self, claim: RunClaim, payload: str) -> None:
        missing = self._missing(claim)
        if missing:
            cause = f"GPU {', '.join(missing)} is not on node {self._machine.node}, or out of order"
            self._note(RunNews(claim.token, RunState.REFUSED, cause=cause))
            return
        used = self._used_by_strangers(claim)
        if used:
            cause = f"GPU {', '.join(used)} is used by somebody else since it was granted"
            log.warning("Not begun: job_id=%s token=%s why=%s", claim.job_id, claim.token, cause)
            self._note(RunNews(claim.token, RunState.REFUSED, cause=cause))
            return
        try:
            self._register.add((claim.job_id, claim.token))
            reference = self._machine.dispatcher.start(self._machine.order(claim, payload))
        except NotReadyError:
            raise
        except (LaunchError, OSError, ValueError) as error:
            self._note(RunNews(claim.token, RunState.ENDED, exit_code=1, cause=str(error)))
            self._register.drop([(claim.job_id, claim.token)])
            return
        self._note_begun(claim.job_id, claim.token, reference, claim.placement)
        log.info("Begun: job_id=%s token=%s reference=%s", claim.job_id, claim.token, reference)
        if not self._limits.is_settled(claim.placement):
            log.warning("Begun before its power limit was set: job_id=%s token=%s", claim.job_id, claim.token)

    def _missing(self, claim: RunClaim) -> list[str]:
        """Return those of the granted GPUs that are not here, or are out of order (C51)."""
        sound = {gpu.uuid for gpu in self._node().gpus if gpu.health is not GpuHealth.UNHEALTHY}
        return [uuid for uuid in claim.placement.gpu_uuids if uuid not in sound]

    def _used_by_strangers(self, claim: RunClaim) -> list[str]:
        """Return those of the granted GPUs on which somebody else is, as of the last look at them (C34)."""
        readings, gpus = self._machine.meter.telemetry.read(), self._node().gpus
        margin_mib = claim.memory_margin_mib
        return used_before_start(claim.placement, gpus, readings, margin_mib, alone=claim.alone)

    def _note_begun(self, job_id: str, token: int, reference: str, placement: Placement | None) -> None:
        self._memory.begun[token] = _Begun(job_id, token, reference, placement)
        self._note(RunNews(token, RunState.RUNNING, process=reference))

    # -- Watching

    def _look(self) -> None:
        """Note the runs that have ended since the last look, and whose memory is back (C27)."""
        for run in list(self._memory.begun.values()):
            state = self._machine.dispatcher.poll(run.reference)
            if state.alive or self._returns.look((run.job_id, run.token)) is Memory.AWAITED:
                continue
            meters = self._machine.meter.runs
            seen = None if meters is None else meters.run_meter(run.job_id, run.token)
            self._note(RunNews(run.token, RunState.ENDED, run.reference, state.exit_code, meter=seen))
            del self._memory.begun[run.token]
            self._use.close((run.job_id, run.token))
            log.info("Ended: job_id=%s token=%s exit_code=%s", run.job_id, run.token, state.exit_code)

    def _held(self) -> tuple[Placement, ...] | None:
        """Return the GPUs of runs that live or are about to begin, as soon as they are known of all."""
        begun = [run.placement for run in self._memory.begun.values()]
        if None in begun and not self._memory.is_answered:
            return None
        claimed = [order.claim.placement for order in self._claims.ordered if order.claim is not None]
        return (*claimed, *(placement for placement in begun if placement is not None))

    # -- Telling

    def _note(self, news: RunNews) -> None:
        self._memory.news[news.token] = news

    def _report(self) -> None:
        """Tell all; what was told is forgotten only once it has arrived."""
        memory = self._memory
        memory.reported_s = self._monotonic()
        node, living = self._node(), {(run.job_id, run.token) for run in memory.begun.values()}
        self._use.measure(living, at_once=memory.leaving)
        limits = self._limits.told()
        report = NodeReport(
            node=replace(node, available=not memory.leaving),
            machine=self._machine.name,
            readings=tuple(self._machine.meter.telemetry.read()),
            news=tuple(memory.news.values()),
            living=tuple(sorted(living)),
            energy=self._use.energy.totals(),
            notes=self._use.energy.notes(),
            counters=self._use.energy.counters,
            peaks_mib=self._use.peaks_mib(living),
            limits=limits,
        )
        try:
            answer = self._api.report(report)
        except NodeApiError as error:
            memory.is_unheard = True
            self._complain(error)
            return
        memory.is_unheard, memory.is_answered, memory.limits = False, True, limits
        ended = {news.token for news in report.news if news.state is not RunState.RUNNING}
        self._register.drop([run for run in self._register.runs if run[1] in ended])
        memory.news.clear()
        self._use.keep(set(memory.begun))
        self._returns.keep(living)
        self._follow(answer.runs)
        self._limits.want(answer.limits_w)

    def _follow(self, valid: Sequence[ValidRun]) -> None:
        """Bring this machine in line with what it may run."""
        by_token = {run.token: run for run in valid}
        for run in self._memory.begun.values():
            allowed = by_token.get(run.token)
            if allowed is None or allowed.job_id != run.job_id or allowed.stop:
                self._end(run, allowed)
            if allowed is not None and allowed.job_id == run.job_id:
                if run.placement is None:  # an earlier worker has begun it
                    self._use.note_unmeasured((run.job_id, run.token), allowed.placement)
                run.placement = allowed.placement
        ordered = {order.token for order in self._claims.ordered}
        self._claims.withdraw(valid)
        for allowed in valid:
            if allowed.token not in self._memory.begun and allowed.token not in ordered:
                self._find_again(allowed)
        self._occupy(valid)

    def _end(self, run: _Begun, allowed: ValidRun | None) -> None:
        if not run.is_ending:
            why = "its lease is over" if allowed is None else "the scheduler asks for it"
            log.warning("Ending a run: job_id=%s token=%s why=%s", run.job_id, run.token, why)
            run.is_ending = True
        grace_s = _DEFAULT_GRACE_S if allowed is None or allowed.grace_s is None else allowed.grace_s
        self._machine.dispatcher.kill(run.reference, grace_s)

    def _find_again(self, allowed: ValidRun) -> None:
        """Look for a run that this worker does not know: an earlier one has begun it, or was about to."""
        reference, run = self._machine.find(allowed.job_id, allowed.token), (allowed.job_id, allowed.token)
        if reference is not None:
            self._use.note_unmeasured(run, allowed.placement)
            self._note_begun(allowed.job_id, allowed.token, reference, allowed.placement)
        elif allowed.state is RunState.CLAIMED:
            cause = "the worker was started again before it had begun"
            self._note(RunNews(allowed.token, RunState.REFUSED, cause=cause))
        else:
            self._use.note_unmeasured(run, allowed.placement)
            cause = "the worker was started again and found its processes gone"
            self._note(RunNews(allowed.token, RunState.ENDED, cause=cause))

    def _occupy(self, valid: Sequence[ValidRun]) -> None:
        occupants = [
            Occupant(run.job_id, run.token, run.family, run.placement, run.memory_mib, run.granted_s)
            for run in valid
            if run.token in self._memory.begun
        ]
        try:
            self._machine.meter.telemetry.occupy(occupants)
        except Exception:
            log.exception("The meter was not told who holds GPUs; it is told again")

    def _node(self) -> Node:
        """Return this machine as its meter sees it, under the node's name."""
        found = next(iter(self._machine.meter.telemetry.inventory()), None)
        return Node(self._machine.node, ()) if found is None else found

    def _complain(self, error: NodeApiError) -> None:
        if self._monotonic() - self._memory.complained_s > _COMPLAIN_S:
            self._memory.complained_s = self._monotonic()
            log.log(logging.ERROR if error.is_refusal else logging.WARNING, "Not reported: %s", error)
