"""Starts jobs on other machines: a message to the node's own queue, its reports for all that follows.

The message is a hint, never an authority: the node asks the provider's API whether the lease may begin, and
begins only what it is told. So a message that is late, lost, doubled or forged starts nothing that the ledger
does not know. What became of a run stands in a :class:`RunBook`, which nodes fill by their reports.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_eaco.core.model.errors import LaunchError, NotReadyError, StoreUnavailableError
from airflow_provider_eaco.core.node_runs import NodeRun, RunState
from airflow_provider_eaco.core.ports import Dispatcher, LaunchOrder, ProcessState

log = logging.getLogger(__name__)

START_TASK = "eaco.start"
# One read of the book answers for all groups of a heartbeat.
_LOOK_AGE_S = 0.5
_BROKER_PAUSE_S = 5.0
_PREFIX = "node"


class RunBook(Protocol):
    """Where runs on nodes are written down; each change is one compare-and-set."""

    def order(self, token: int, job_id: str, node: str) -> None:
        """Note that the lease is about to be sent to its node; a second call changes nothing."""

    def runs(self, tokens: Collection[int]) -> Mapping[int, NodeRun]:
        """Return what is known of these runs, by token."""

    def take_back(self, token: int, older_than_s: float) -> bool:
        """Take an order back that is this old and has not been claimed; return whether it was."""

    def abandon(self, token: int, silent_s: float) -> bool:
        """Give a run up whose node has been silent for so long; return whether it was."""

    def ask_to_stop(self, token: int, grace_s: float) -> None:
        """Have the node end the run; one that has not been claimed is taken back at once."""


@dataclass(frozen=True, slots=True)
class NodeReference:
    """A run on another machine: which lease on which node. Node names hold no colon."""

    node: str
    token: int
    job_id: str

    @classmethod
    def parse(cls, text: str) -> NodeReference:
        """Read what ``str()`` of a reference gave.

        :raises ValueError: for any other text.
        """
        prefix, _, rest = text.partition(":")
        node, _, rest = rest.partition(":")
        token, _, job_id = rest.partition(":")
        if prefix != _PREFIX or not node or not token.isdecimal() or not job_id:
            raise ValueError(f"reference: {text!r} is not of the form node:name:token:job_id")
        return cls(node, int(token), job_id)

    @classmethod
    def is_one(cls, text: str) -> bool:
        """Tell whether the text names a run on a node."""
        return text.startswith(f"{_PREFIX}:")

    @property
    def is_in_reach(self) -> bool:
        """Whether it can be followed from here: by its node's reports, from anywhere."""
        return True

    def __str__(self) -> str:
        return f"{_PREFIX}:{self.node}:{self.token}:{self.job_id}"


class CeleryDispatcher:
    """Starts and ends jobs on nodes that run ``airflow eaco worker``.

    :param book: where runs are written down.
    :param send: puts a message for a task into a queue; raises if the broker does not take it.
    :param timeout_s: seconds after which an order that was not begun is taken back, and a silent node's runs
        that nobody wants any more count as gone. Nothing new starts on such a node before it has reported
        again and ended what it should not run.
    :param monotonic: clock for the age of what was read last.
    """

    def __init__(
        self,
        book: RunBook,
        send: Callable[[str, str, Mapping[str, Any]], None],
        *,
        timeout_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._send = send
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._broker_again_s = float("-inf")
        self._watched: set[int] = set()
        self._seen: Mapping[int, NodeRun] = {}
        self._seen_at_s = float("-inf")

    def start(self, order: LaunchOrder) -> str:
        """Send the order to the node of its placement and return the run's reference.

        :raises NotReadyError: while the broker takes no messages; the same order is to be handed in again.
        :raises LaunchError: if the order names no node.
        :raises StoreUnavailableError: if the order cannot be written down; then nothing was sent.
        """
        if order.placement is None:
            raise LaunchError(f"job {order.job_id}: the order names no node")
        if self._monotonic() < self._broker_again_s:
            raise NotReadyError("the broker has just taken no message")
        node = order.placement.node
        self._book.order(order.token, order.job_id, node)
        self._seen_at_s = float("-inf")
        message = {"v": 1, "job_id": order.job_id, "token": order.token, "payload": order.payload}
        try:
            self._send(queue_of(node), START_TASK, message)
        except Exception as error:
            # Each try may block for seconds: one a pause is enough for all that wait.
            self._broker_again_s = self._monotonic() + _BROKER_PAUSE_S
            log.warning("The broker takes no messages, granted tasks wait: node=%s error=%s", node, error)
            raise NotReadyError(f"job {order.job_id}: the broker did not take it: {error}") from error
        return str(NodeReference(node, order.token, order.job_id))

    def poll(self, reference: str) -> ProcessState:
        """Return what the node has last said; while nothing is known the run counts as alive.

        :raises ValueError: for a text that is no reference of this dispatcher.
        """
        token = NodeReference.parse(reference).token
        try:
            run = self._look(token)
            if run is None:
                return ProcessState(alive=False)
            state = self._judge(token, run)
        except StoreUnavailableError:
            last = self._seen.get(token)
            return ProcessState(alive=True, begun=last is not None and last.begun)
        if not state.alive:
            self._watched.discard(token)
        return state

    def kill(self, reference: str, grace_s: float) -> None:
        """Have the node end the run at its next report; idempotent."""
        self._book.ask_to_stop(NodeReference.parse(reference).token, grace_s)
        self._seen_at_s = float("-inf")

    def close(self, timeout_s: float) -> None:
        """Nothing is held here; runs go on."""

    def _look(self, token: int) -> NodeRun | None:
        if token not in self._watched:
            self._watched.add(token)
            self._seen_at_s = float("-inf")
        if self._monotonic() - self._seen_at_s > _LOOK_AGE_S:
            self._seen = self._book.runs(self._watched)
            self._seen_at_s = self._monotonic()
        return self._seen.get(token)

    def _judge(self, token: int, run: NodeRun) -> ProcessState:
        is_silent = run.silent_s is None or run.silent_s > self._timeout_s
        if run.state is RunState.ORDERED and run.age_s > self._timeout_s:
            gone = self._book.take_back(token, self._timeout_s)
        elif run.state is RunState.CLAIMED or (run.state is RunState.RUNNING and run.stop_asked):
            gone = is_silent and self._book.abandon(token, self._timeout_s)
        else:
            gone = run.state not in {RunState.ORDERED, RunState.RUNNING}
        if not gone:
            return ProcessState(alive=True, begun=run.begun)
        return ProcessState(alive=False, exit_code=run.exit_code, begun=run.begun, cause=run.cause)


class NodeDispatcher:
    """One dispatcher for all nodes: this machine's by the one, those with a worker by the other.

    :param has_worker: tells whether a node is one with a worker.
    """

    def __init__(self, here: Dispatcher, elsewhere: Dispatcher, has_worker: Callable[[str], bool]) -> None:
        self._here = here
        self._elsewhere = elsewhere
        self._has_worker = has_worker

    def start(self, order: LaunchOrder) -> str:
        remote = order.placement is not None and self._has_worker(order.placement.node)
        return (self._elsewhere if remote else self._here).start(order)

    def poll(self, reference: str) -> ProcessState:
        return self._of(reference).poll(reference)

    def kill(self, reference: str, grace_s: float) -> None:
        self._of(reference).kill(reference, grace_s)

    def close(self, timeout_s: float) -> None:
        self._elsewhere.close(timeout_s)
        self._here.close(timeout_s)

    def _of(self, reference: str) -> Dispatcher:
        return self._elsewhere if NodeReference.is_one(reference) else self._here


def queue_of(node: str) -> str:
    """Return the name of the node's own queue."""
    return f"eaco.{node}"
