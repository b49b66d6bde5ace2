"""A run on another machine, told by the book alone: sent, begun, ended, taken back, given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_eaco.core.model.errors import LaunchError, NotReadyError, StoreUnavailableError
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import NodeRun, RunState
from airflow_provider_eaco.core.ports import LaunchOrder, ProcessState
from airflow_provider_eaco.dispatch.celery import CeleryDispatcher, NodeDispatcher, NodeReference

TIMEOUT_S = 60.0
REFERENCE = "node:gpu-1:7:job:with:colons"
ALIVE, GONE = ProcessState(alive=True), ProcessState(alive=False)
ORDERED = NodeRun(RunState.ORDERED, False, None, 1.0, 1.0, False)


class FakeBook:
    """One run, as a test wants it."""

    def __init__(self) -> None:
        self.run: NodeRun | None = None
        self.is_away = False
        self.asked: list[str] = []
        self.reads = 0

    def order(self, token: int, job_id: str, node: str) -> None:
        self.asked.append(f"order {token} {job_id} {node}")
        self.run = self.run or ORDERED

    def runs(self, tokens: Collection[int]) -> Mapping[int, NodeRun]:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailableError("away")
        return {} if self.run is None else dict.fromkeys(tokens, self.run)

    def take_back(self, token: int, older_than_s: float) -> bool:
        return self._close({RunState.ORDERED}, RunState.TAKEN_BACK)

    def abandon(self, token: int, silent_s: float) -> bool:
        return self._close({RunState.CLAIMED, RunState.RUNNING}, RunState.ABANDONED)

    def ask_to_stop(self, token: int, grace_s: float) -> None:
        self.asked.append(f"stop {token} {grace_s:g}")

    def _close(self, before: set[RunState], after: RunState) -> bool:
        if self.run is None or self.run.state not in before:
            return False
        self.run = replace(self.run, state=after)
        return True


class Rig:
    """A dispatcher over the book, with a broker and a clock of the test's own."""

    def __init__(self) -> None:
        self.book = FakeBook()
        self.sent: list[tuple[str, str, Mapping[str, Any]]] = []
        self.is_broker_away = False
        self.now_s = 0.0
        self.dispatcher = CeleryDispatcher(
            self.book, self._send, timeout_s=TIMEOUT_S, monotonic=lambda: self.now_s
        )

    def _send(self, queue: str, task: str, message: Mapping[str, Any]) -> None:
        if self.is_broker_away:
            raise ConnectionError("refused")
        self.sent.append((queue, task, message))

    def poll(self) -> ProcessState:
        self.now_s += 1.0
        return self.dispatcher.poll(REFERENCE)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def order(placement: Placement | None) -> LaunchOrder:
    return LaunchOrder("job:with:colons", 7, "module:function", "payload", {"A": "1"}, placement)


ON_NODE = order(Placement("gpu-1", ("GPU-1",)))


def test_a_start_is_written_down_and_sent_to_the_node(rig: Rig) -> None:
    """The message carries job, token and payload, and neither GPUs nor an entry point nor variables."""
    assert rig.dispatcher.start(ON_NODE) == REFERENCE
    assert rig.book.asked == ["order 7 job:with:colons gpu-1"]
    message = {"v": 1, "job_id": "job:with:colons", "token": 7, "payload": "payload"}
    assert rig.sent == [("eaco.gpu-1", "eaco.start", message)]


def test_a_start_without_a_node_is_none(rig: Rig) -> None:
    """Without a placement nobody knows where to send it."""
    with pytest.raises(LaunchError, match="names no node"):
        rig.dispatcher.start(order(None))


def test_a_broker_that_is_away_keeps_the_task_waiting(rig: Rig) -> None:
    """Nothing fails while the broker is away, and it is not asked for each task; then the start goes on."""
    rig.is_broker_away = True
    with pytest.raises(NotReadyError):
        rig.dispatcher.start(ON_NODE)
    rig.is_broker_away = False
    with pytest.raises(NotReadyError, match="just"):
        rig.dispatcher.start(ON_NODE)
    rig.now_s += 10.0
    assert rig.dispatcher.start(ON_NODE) == REFERENCE


@pytest.mark.parametrize(
    ("run", "state"),
    [
        pytest.param(ORDERED, replace(ALIVE, begun=False), id="ordered"),
        pytest.param(
            replace(ORDERED, age_s=61.0), replace(GONE, begun=False), id="ordered long ago: taken back"
        ),
        pytest.param(
            replace(ORDERED, state=RunState.CLAIMED, age_s=61.0), replace(ALIVE, begun=False), id="claimed"
        ),
        pytest.param(
            replace(ORDERED, state=RunState.CLAIMED, silent_s=61.0),
            replace(GONE, begun=False),
            id="claimed by a node that fell silent: given up",
        ),
        pytest.param(
            replace(ORDERED, state=RunState.CLAIMED, silent_s=None),
            replace(GONE, begun=False),
            id="claimed by a node that is known no more: given up",
        ),
        pytest.param(replace(ORDERED, state=RunState.RUNNING, begun=True), ALIVE, id="running"),
        pytest.param(
            replace(ORDERED, state=RunState.RUNNING, begun=True, silent_s=1e6),
            ALIVE,
            id="running on a silent node, and wanted: left alone",
        ),
        pytest.param(
            replace(ORDERED, state=RunState.RUNNING, begun=True, silent_s=30.0, stop_asked=True),
            ALIVE,
            id="running, to be ended",
        ),
        pytest.param(
            replace(ORDERED, state=RunState.RUNNING, begun=True, silent_s=61.0, stop_asked=True),
            GONE,
            id="running on a silent node, to be ended: given up",
        ),
        pytest.param(
            replace(ORDERED, state=RunState.ENDED, begun=True, exit_code=3),
            replace(GONE, exit_code=3),
            id="ended",
        ),
        pytest.param(
            replace(ORDERED, state=RunState.ENDED, exit_code=1, cause="disk full"),
            ProcessState(False, 1, begun=False, cause="disk full"),
            id="could not be started",
        ),
        pytest.param(
            replace(ORDERED, state=RunState.REFUSED, cause="no such GPU"),
            ProcessState(False, None, begun=False, cause="no such GPU"),
            id="refused",
        ),
        pytest.param(None, GONE, id="not in the book"),
    ],
)
def test_what_the_book_says_is_what_is_known(run: NodeRun | None, state: ProcessState, rig: Rig) -> None:
    """Each state of a run, with the age of the order and the silence of its node, means one thing."""
    rig.book.run = run
    assert rig.poll() == state
    assert rig.poll() == state, "asked again"


def test_a_claim_that_came_first_wins(rig: Rig) -> None:
    """An order that was claimed between the look and the taking back is alive."""
    rig.book.run = replace(ORDERED, age_s=61.0)
    rig.book.take_back = lambda token, older_than_s: False  # type: ignore[method-assign]
    assert rig.poll() == ProcessState(alive=True, begun=False)


def test_a_book_out_of_reach_ends_nothing(rig: Rig) -> None:
    """While the store is away a run counts as it was last seen, and lives."""
    rig.book.run = replace(ORDERED, state=RunState.RUNNING, begun=True)
    assert rig.poll() == ALIVE
    rig.book.is_away = True
    assert rig.poll() == ALIVE


def test_one_read_serves_a_heartbeat(rig: Rig) -> None:
    """Many runs that are looked at together cost one read once they are known."""
    rig.book.run = ORDERED
    references = [f"node:gpu-1:{token}:job" for token in range(1, 21)]
    for reference in references:
        rig.dispatcher.poll(reference)
    rig.now_s, rig.book.reads = 10.0, 0
    for reference in references:
        rig.dispatcher.poll(reference)
    assert rig.book.reads == 1


def test_a_kill_is_left_to_the_node(rig: Rig) -> None:
    """To end a run is noted for its node's next report."""
    rig.dispatcher.kill(REFERENCE, 5.0)
    assert rig.book.asked == ["stop 7 5"]


@pytest.mark.parametrize(
    "text", ["", "node:", "node::7:job", "node:gpu-1:x:job", "node:gpu-1:7:", "1:2:h:b:7:j"]
)
def test_a_text_that_is_no_reference_is_refused(text: str) -> None:
    """What the dispatcher did not write it does not read."""
    with pytest.raises(ValueError, match="reference"):
        NodeReference.parse(text)


class _Named:
    """A dispatcher that says who it is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[str] = []

    def start(self, order: LaunchOrder) -> str:
        return self.name

    def poll(self, reference: str) -> ProcessState:
        return ProcessState(alive=self.name == "here")

    def kill(self, reference: str, grace_s: float) -> None:
        self.calls.append(reference)

    def close(self, timeout_s: float) -> None:
        self.calls.append("close")


def test_nodes_of_both_kinds_are_mixed() -> None:
    """A start goes where its node is, and a reference back to who gave it."""
    here, elsewhere = _Named("here"), _Named("elsewhere")
    both = NodeDispatcher(here, elsewhere, lambda node: node == "gpu-1")
    assert both.start(ON_NODE) == "elsewhere"
    assert both.start(order(Placement("mine", ("GPU-1",)))) == "here"
    assert both.start(order(None)) == "here"
    assert not both.poll(REFERENCE).alive
    assert both.poll("1:2:host:boot:7:job").alive
    both.kill(REFERENCE, 1.0)
    both.kill("1:2:host:boot:7:job", 1.0)
    both.close(1.0)
    assert (here.calls, elsewhere.calls) == (["1:2:host:boot:7:job", "close"], [REFERENCE, "close"])
