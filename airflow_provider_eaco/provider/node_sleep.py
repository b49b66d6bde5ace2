"""Puts nodes with a worker to sleep and wakes them, by the operator's commands.

Plans see such a node as available, asleep or waking: whoever is placed there waits with its lease until the
node reports. One that does not in time is drained, and who waited there waits in the queue again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import NotReadyError
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.instruction import SleepNode, WakeNode
from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.ports import (
    DecisionLog,
    Dispatcher,
    LaunchOrder,
    Ledger,
    LedgerView,
    ProcessState,
)
from airflow_provider_eaco.engine.admission_loop import CycleReport
from airflow_provider_eaco.engine.node_sleep import Patience, Sight, Step, is_needed, is_ready, next_step
from airflow_provider_eaco.provider.outside_commands import Finished
from airflow_provider_eaco.provider.services import Admission, Workers
from airflow_provider_eaco.provider.sleep_settings import SleepSettings

log = logging.getLogger(__name__)

# Between the step that plans see and the command: whoever has planned without it has granted by then.
RECONSIDER_S = 10.0
# After a command has failed it is not tried again for so long.
RETRY_S = 600.0
# A wake-up call may get lost; it is repeated while the node wakes.
WAKE_AGAIN_S = 60.0
# In the stories of tasks.
EVENT = "node_sleep"


class SleepBook(Protocol):
    """Which nodes sleep or wake, for all schedulers."""

    def states(self) -> Mapping[str, NodePowerState]: ...

    def move(self, node: str, before: NodePower | None, after: NodePower | None) -> bool: ...


class Commands(Protocol):
    """Runs the operator's commands."""

    def is_running(self, name: str) -> bool: ...

    def begin(self, name: str, command: Sequence[str], timeout_s: float) -> str | None: ...

    def finished(self, name: str) -> Finished | None: ...


@dataclass(slots=True)
class _Watched:
    """What this process knows of a node. ``up`` is its state while it is in no book; instants are the
    store's. ``sleep_s``: when the command that puts it to sleep is due, after a last look.
    """

    settings: SleepSettings
    up: NodePowerState
    asked: SleepNode | WakeNode | None = None
    sleep_s: float | None = None
    slept_s: float = float("-inf")
    not_before_s: float = float("-inf")
    woken_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Around:
    """What a sleeper works with. ``readings`` are those of nodes with a worker; a stranger's memory up to
    ``margin_mib`` counts as nobody's; a node is silent after ``silent_s``.
    """

    book: SleepBook
    ledger: Ledger
    workers: Workers
    decisions: DecisionLog
    commands: Commands
    readings: Callable[[], Sequence[GpuReading]]
    margin_mib: int = 0
    silent_s: float = 60.0


@dataclass(slots=True)
class _Memory:
    nodes: dict[str, _Watched] = field(default_factory=dict)
    states: Mapping[str, NodePowerState] = field(default_factory=dict)
    advised: set[str] = field(default_factory=set)


class NodeSleeper:
    """The sleep of the configured nodes, for the scheduler's own thread."""

    def __init__(self, nodes: Sequence[SleepSettings], around: Around) -> None:
        self._around = around
        self._memory = _Memory()
        self._settings = {each.node: each for each in nodes}

    @property
    def is_needed(self) -> bool:
        """Whether any node may be put to sleep."""
        return bool(self._settings)

    # -- What plans see and say

    def told(self, pools: Sequence[PoolState]) -> Sequence[PoolState]:
        """Return the pools with the power states of the nodes that can sleep."""
        if not self._settings:
            return pools
        up = {name: watched.up for name, watched in self._memory.nodes.items()}
        states = {**up, **self._memory.states}
        return [replace(pool, node_power=states) for pool in pools]

    def seen(self, view: LedgerView) -> LedgerView:
        """Return the view in which nodes that sleep or wake can be granted: they are silent by our will."""
        down = self._memory.states
        if not down:
            return view
        nodes = tuple(
            replace(node, available=True, last_report_s=view.now_s) if node.name in down else node
            for node in view.nodes
        )
        return replace(view, nodes=nodes)

    def heard(self, admission: Admission) -> Admission:
        """Return the admission, from whose reports is taken who is to sleep or wake."""
        return _Heard(admission, self)

    def take(self, report: CycleReport) -> None:
        """Take in what a cycle wants of nodes; for one without commands it is advice, told once."""
        for steer in report.steers:
            if not isinstance(steer, SleepNode | WakeNode):
                continue
            watched = self._memory.nodes.get(steer.node)
            if watched is not None:
                watched.asked = steer
            elif steer.node not in self._settings and steer.node not in self._memory.advised:
                self._memory.advised.add(steer.node)
                log.info("A policy would have a node sleep, for which there are no commands: %s", steer.node)

    def starting(self, dispatcher: Dispatcher) -> Dispatcher:
        """Return the dispatcher, which lets orders wait for nodes that are not up."""
        return _WhenUp(dispatcher, self) if self._settings else dispatcher

    def is_up(self, node: str) -> bool:
        """Tell whether tasks can be started on the node, as far as its sleep goes."""
        return node not in self._memory.states

    # -- What nodes are told

    def step(self, view: LedgerView) -> None:
        """Go on with each node: commands that have ended, what is due, what is asked.

        :raises StoreUnavailableError: if the store is out of reach; what was not done is done next time.
        """
        self._look()
        readings = {reading.uuid: reading for reading in self._around.readings()}
        for node in view.nodes:
            settings = self._settings.get(node.name)
            if settings is None or not self._around.workers.has_worker(node.name):
                continue
            watched = self._watched(settings, view)
            self._collect(watched, view)
            needed = is_needed(view, node.name, settings.wake_timeout_s)
            ready = is_ready(node, readings, self._around.margin_mib, view.now_s, self._around.silent_s)
            state = self._memory.states.get(node.name, watched.up)
            sight = Sight(state, node.last_report_s, needed, ready, watched.slept_s)
            if watched.sleep_s is not None and state.power is NodePower.ASLEEP:
                self._reconsider(watched, sight, view)
            else:
                watched.sleep_s = None
                self._act(watched, sight, view)

    def _watched(self, settings: SleepSettings, view: LedgerView) -> _Watched:
        """Return what is known of the node, with who holds GPUs there now."""
        name = settings.node
        idle = NodePowerState(NodePower.IDLE, view.now_s)
        watched = self._memory.nodes.setdefault(name, _Watched(settings, idle))
        held = any(lease.placement.node == name for lease in view.leases)
        up = watched.up.wanted(view.now_s) if held else watched.up.vacated(view.now_s)
        # What it was before it slept says nothing about how long it has been idle since.
        watched.up = idle if name in self._memory.states and not held else up
        return watched

    def _act(self, watched: _Watched, sight: Sight, view: LedgerView) -> None:
        settings, now_s = watched.settings, view.now_s
        name, running = settings.node, self._around.commands.is_running(settings.node)
        settle_s = RECONSIDER_S + settings.command_timeout_s + self._around.silent_s
        patience = Patience(settings.idle_s, settings.wake_timeout_s, settle_s)
        step = next_step(sight, watched.asked, patience, now_s)
        watched.asked = None
        called_s = max(watched.woken_s, sight.power.since_s)
        if step is Step.SLEEP and not running and now_s >= watched.not_before_s:
            if self._move(name, None, NodePower.ASLEEP):
                watched.sleep_s = now_s + RECONSIDER_S
        elif step is Step.WAKE and not running and self._move(name, NodePower.ASLEEP, NodePower.WAKING):
            self._wake(watched, view)
            self._tell(name, view, f"waits for node {name}, which is woken")
        elif step is Step.UP and self._move(name, sight.power.power, None):
            if sight.power.power is NodePower.ASLEEP:
                # The command came to nothing, or somebody wants the node up.
                watched.not_before_s = now_s + RETRY_S
            log.info("A node is up: node=%s was=%s", name, sight.power.power.value)
        elif step is Step.FAILED:
            self._give_up(watched, view)
        elif sight.power.power is NodePower.WAKING and not running and now_s - called_s >= WAKE_AGAIN_S:
            self._wake(watched, view)

    def _reconsider(self, watched: _Watched, sight: Sight, view: LedgerView) -> None:
        """Run the command once all plans have seen the node asleep for a while, if nobody was faster."""
        name, settings = watched.settings.node, watched.settings
        is_wanted = sight.needed or isinstance(watched.asked, WakeNode)
        watched.asked = None
        if is_wanted or not sight.ready:
            watched.sleep_s = None
            self._move(name, NodePower.ASLEEP, None)
        elif watched.sleep_s is not None and view.now_s >= watched.sleep_s:
            watched.sleep_s, watched.slept_s = None, view.now_s
            log.info("A node is put to sleep: node=%s", name)
            problem = self._around.commands.begin(name, settings.sleep, settings.command_timeout_s)
            if problem is not None:
                self._failed(watched, NodePower.ASLEEP, problem, view)

    def _wake(self, watched: _Watched, view: LedgerView) -> None:
        settings = watched.settings
        watched.woken_s = view.now_s
        log.info("A node is woken: node=%s", settings.node)
        problem = self._around.commands.begin(settings.node, settings.wake, settings.command_timeout_s)
        if problem is not None:
            self._failed(watched, NodePower.WAKING, problem, view)

    def _collect(self, watched: _Watched, view: LedgerView) -> None:
        """Take in what became of the node's last command."""
        name = watched.settings.node
        finished = self._around.commands.finished(name)
        if finished is not None and not finished.succeeded:
            state = self._memory.states.get(name)
            self._failed(watched, None if state is None else state.power, finished.cause, view)

    def _failed(self, watched: _Watched, state: NodePower | None, cause: str, view: LedgerView) -> None:
        """Take a node whose command to sleep failed for one that is up; who wakes is called again anyway."""
        name = watched.settings.node
        log.warning("A command of [eaco] node_sleep failed: node=%s state=%s cause=%s", name, state, cause)
        if state is NodePower.ASLEEP:
            watched.not_before_s = view.now_s + RETRY_S
            self._move(name, NodePower.ASLEEP, None)

    def _give_up(self, watched: _Watched, view: LedgerView) -> None:
        name = watched.settings.node
        why = f"node {name} did not wake within {watched.settings.wake_timeout_s:g} s and is drained"
        log.error("Drained: %s; `airflow eaco drain %s --undo` lets it be used again", why, name)
        self._around.ledger.set_draining(name, True)
        self._tell(name, view, f"waits again: {why}")
        leased = {record.job.job_id for record in view.jobs if record.phase is JobPhase.LEASED}
        for lease in view.leases:
            # Of the order and of taking it back one is first.
            if (
                lease.placement.node == name
                and lease.job_id in leased
                and self._around.workers.withdraw(lease)
            ):
                self._around.ledger.release(lease.token, JobPhase.WAITING)
        self._move(name, NodePower.WAKING, None)

    def _tell(self, node: str, view: LedgerView, text: str) -> None:
        for lease in view.leases:
            if lease.placement.node == node:
                self._around.decisions.record_event(lease.job_id, EVENT, text, view.now_s)

    def _move(self, node: str, before: NodePower | None, after: NodePower | None) -> bool:
        moved = self._around.book.move(node, before, after)
        self._look()
        return moved

    def _look(self) -> None:
        """Take in which of the nodes sleep or wake; one that has lost its worker is just silent."""
        self._memory.states = {
            name: state
            for name, state in self._around.book.states().items()
            if name in self._settings and self._around.workers.has_worker(name)
        }


class _Heard:
    """An admission loop whose wishes about nodes are taken."""

    def __init__(self, admission: Admission, sleeper: NodeSleeper) -> None:
        self._admission = admission
        self._sleeper = sleeper

    def run_once(self, readings: Sequence[GpuReading]) -> CycleReport:
        report = self._admission.run_once(readings)
        self._sleeper.take(report)
        return report


class _WhenUp:
    """A dispatcher that starts nothing on a node that is not up."""

    def __init__(self, dispatcher: Dispatcher, sleeper: NodeSleeper) -> None:
        self._dispatcher = dispatcher
        self._sleeper = sleeper

    def start(self, order: LaunchOrder) -> str:
        node = "" if order.placement is None else order.placement.node
        if not self._sleeper.is_up(node):
            raise NotReadyError(f"job {order.job_id}: node {node} is not up yet")
        return self._dispatcher.start(order)

    def poll(self, reference: str) -> ProcessState:
        return self._dispatcher.poll(reference)

    def kill(self, reference: str, grace_s: float) -> None:
        self._dispatcher.kill(reference, grace_s)

    def close(self, timeout_s: float) -> None:
        self._dispatcher.close(timeout_s)
