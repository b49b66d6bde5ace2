"""Starts and ends jobs on this machine: one process group each, forked from a prepared forkserver.

:class:`LocalDispatcher` implements :class:`airflow_provider_eaco.core.ports.Dispatcher`. It keeps no thread
and imports nothing that jobs need; all it holds is one child process and one socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_eaco.core.model.errors import LaunchError, NotReadyError
from airflow_provider_eaco.core.ports import LaunchOrder, ProcessState
from airflow_provider_eaco.dispatch.channel import ChannelClosedError
from airflow_provider_eaco.dispatch.claim import claimant
from airflow_provider_eaco.dispatch.environment import JOB_ID_VARIABLE, LEASE_TOKEN_VARIABLE
from airflow_provider_eaco.dispatch.forkserver_process import ForkserverProcess
from airflow_provider_eaco.dispatch.process_group import (
    Process,
    ProcessReference,
    descendants_of,
    members_of,
    read_process,
    read_processes,
    send_signal,
)

# Covers the forkserver's imports on a slow, busy machine; nothing blocks while they last.
DEFAULT_READY_TIMEOUT_S = 60.0
# A start takes milliseconds. This one blocks the caller, whom Airflow takes for dead after 30 s by default
# (``[scheduler] scheduler_health_check_threshold``).
DEFAULT_ANSWER_TIMEOUT_S = 8.0
# Less than the above by more than the forkserver's wait for the killed keeper: its answer has to arrive.
DEFAULT_KEEPER_TIMEOUT_S = 5.0
# Between a keeper's end and the forkserver's word on its exit code lie microseconds.
_EXIT_CODE_WAIT_S = 1.0
# Within this time several groups are judged by one pass over /proc.
_TABLE_AGE_S = 0.5
# A keeper leaves by itself once its job is gone; this long after SIGKILL it is taken for stuck.
_KEEPER_PATIENCE_S = 2.0
_CODES_KEPT = 4096

_Identity = tuple[int, int]  # pid, start ticks


class LocalDispatcher:
    """Starts process groups on this machine and finds them again, whoever has started them.

    The dispatcher may be made anew at any time, in another process as well: references stay valid. Only the
    exit codes of groups that another dispatcher started are out of reach. Not for several threads at once.

    :param preload: modules that the forkserver imports before the first job; never imported here.
    :param ready_timeout_s: seconds that a new forkserver may take for its imports; no call waits for them.
    :param answer_timeout_s: longest time that one start may block.
    :param keeper_timeout_s: seconds after which the forkserver ends a keeper that has not got as far as its
        job, because its log cannot be opened for example; more than a second below ``answer_timeout_s``.
    :param monotonic: clock for grace periods, in seconds; only differences count.
    """

    def __init__(
        self,
        preload: Sequence[str] = (),
        *,
        ready_timeout_s: float = DEFAULT_READY_TIMEOUT_S,
        answer_timeout_s: float = DEFAULT_ANSWER_TIMEOUT_S,
        keeper_timeout_s: float = DEFAULT_KEEPER_TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._preload = tuple(preload)
        self._ready_timeout_s = ready_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._keeper_timeout_s = keeper_timeout_s
        self._monotonic = monotonic
        self._forkserver: ForkserverProcess | None = None
        self._begun_s = float("-inf")
        self._failed_warm_up: str | None = None
        self._unanswered: set[tuple[str, int]] = set()  # job ids and tokens that have had their first try
        self._awaited: set[_Identity] = set()
        self._codes: dict[_Identity, int] = {}
        self._endings: dict[str, _Ending] = {}
        self._dead_since_s: dict[str, float] = {}
        self._table: dict[int, Process] = {}
        self._table_read_s = float("-inf")

    def warm_up(self, timeout_s: float = 0.0) -> bool:
        """Begin to prepare the forkserver, and return whether it is ready within ``timeout_s`` seconds.

        :raises LaunchError: if no process can be started.
        """
        server = self._ensure_forkserver()
        deadline_s = self._monotonic() + timeout_s
        while self._forkserver is server and not server.is_ready:
            left_s = deadline_s - self._monotonic()
            if not self._take_in(max(left_s, 0.0)) and left_s <= 0:
                break
        return self._forkserver is server and server.is_ready

    def start(self, order: LaunchOrder) -> str:
        """Start the order and return its reference; if its lease's group lives already, return that one's.

        A bad entry point is no launch error: the group then ends with code 1 and the cause in its output.
        Output goes to the file named by ``EACO_LOG_FILE`` in the order's environment, else where the output
        of this process goes.

        A start that the forkserver leaves unanswered ends that forkserver, and has one more try on its
        successor. The claim on the lease, held by whatever keeper the first one forked, keeps it single.

        :raises NotReadyError: at once, while the forkserver prepares itself; and after a first try without
            an answer. Call again later with the same order.
        :raises LaunchError: with the operating system's cause; then nothing was started.
        """
        running = self._running(order)
        if running is not None:
            return str(running)
        _check(order)
        answer = self._request_start(order)
        if isinstance(answer, ProcessReference):
            return str(answer)
        if "failed" in answer:
            # The cause may be that a keeper of the lost forkserver came first.
            running = self._running(order)
            if running is not None:
                return str(running)
            raise LaunchError(f"job {order.job_id}: {answer['failed']}")
        identity = (int(answer["started"]), int(answer["start_ticks"]))
        self._awaited.add(identity)
        return str(ProcessReference.here(*identity, order.token, order.job_id))

    def poll(self, reference: str) -> ProcessState:
        """Return the state of the group; carries on with an ending that :meth:`kill` began.

        A group of another host counts as alive, since nothing here can prove its end; one from before the
        last start of this machine does not. ``exit_code`` is that of the entry point, 128 plus the number
        of the signal that ended its process, or negative for a signal that ended the keeper.

        :raises ValueError: for a text that is no reference.
        """
        wanted = ProcessReference.parse(reference)
        if not wanted.on_this_host:
            return ProcessState(alive=True)
        self._collect()
        if wanted.since_this_boot and self._is_alive(wanted):
            return ProcessState(alive=True)
        self._endings.pop(reference, None)
        self._dead_since_s.pop(reference, None)
        return ProcessState(alive=False, exit_code=self._codes.get((wanted.pid, wanted.start_ticks)))

    def kill(self, reference: str, grace_s: float) -> None:
        """Send SIGTERM to every member now; later polls send SIGKILL to those left after ``grace_s`` seconds.

        A second call changes nothing, except that a shorter grace brings SIGKILL forward.

        :raises ValueError: for a text that is no reference.
        """
        wanted = ProcessReference.parse(reference)
        if not (wanted.on_this_host and wanted.since_this_boot):
            return
        kill_at_s = self._monotonic() + grace_s
        ending = self._endings.get(reference)
        if ending is None:
            members = members_of(wanted, self._processes(self._monotonic()))
            if not members:
                return
            ending = self._endings[reference] = _Ending(kill_at_s, members)
            for process in ending.alive(wanted, members, with_keeper=False):
                send_signal(process, signal.SIGTERM)
        ending.kill_at_s = min(ending.kill_at_s, kill_at_s)
        self._carry_on(wanted, ending)

    def close(self, timeout_s: float) -> None:
        """End the forkserver within ``timeout_s`` seconds; groups go on. A later start makes a new one."""
        if self._forkserver is not None:
            self._collect()
        if self._forkserver is not None:
            self._forkserver.close(timeout_s)
            self._lose_forkserver()
            self._failed_warm_up = None

    def _is_alive(self, wanted: ProcessReference) -> bool:
        ending = self._endings.get(str(wanted))
        if ending is not None:
            self._carry_on(wanted, ending)
        if wanted.leader() is not None:
            return True
        identity = (wanted.pid, wanted.start_ticks)
        if identity in self._awaited:
            self._collect(until=identity)
        if self._codes.get(identity, -1) >= 0:
            return False  # a keeper that leaves by itself has seen every process of its job end
        first_seen_s = self._dead_since_s.setdefault(str(wanted), self._monotonic())
        members = members_of(wanted, self._processes(first_seen_s))
        seen = () if ending is None else ending.alive(wanted, members, with_keeper=True)
        return bool(members) or bool(seen)

    def _carry_on(self, wanted: ProcessReference, ending: _Ending) -> None:
        """Send SIGKILL to what is left of the group once its grace is over."""
        overdue_s = self._monotonic() - ending.kill_at_s
        if overdue_s < 0:
            return
        members = members_of(wanted, self._processes(self._monotonic() - _TABLE_AGE_S))
        # The keeper is spared at first: while it lives, whoever loses a parent becomes its child.
        for process in ending.alive(wanted, members, with_keeper=overdue_s > _KEEPER_PATIENCE_S):
            send_signal(process, signal.SIGKILL)

    def _processes(self, not_before_s: float) -> Mapping[int, Process]:
        now_s = self._monotonic()
        if self._table_read_s < not_before_s or now_s - self._table_read_s > _TABLE_AGE_S:
            self._table = read_processes()
            self._table_read_s = now_s
        return self._table

    def _running(self, order: LaunchOrder) -> ProcessReference | None:
        """Return the group that lives under the order's lease, or ``None`` if nobody claims that.

        :raises NotReadyError: while there is a keeper without a job. If its forkserver is gone before it
            could report, it leaves by itself and starts nothing; if it cannot, it is ended.
        :raises LaunchError: if such a keeper cannot be ended.
        """
        pid = claimant(order.job_id, order.token)
        keeper = None if pid is None else read_process(pid)
        if keeper is None:
            return None
        if descendants_of([keeper.pid], read_processes()):
            return ProcessReference.here(keeper.pid, keeper.start_ticks, order.token, order.job_id)
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - keeper.start_ticks / os.sysconf("SC_CLK_TCK")
        if age_s > self._ready_timeout_s:
            raise LaunchError(f"job {order.job_id}: its keeper, process {keeper.pid}, hangs")
        if age_s > self._answer_timeout_s:
            send_signal(keeper, signal.SIGKILL)
        raise NotReadyError(f"job {order.job_id}: process {keeper.pid} has claimed it and not started it yet")

    def _request_start(self, order: LaunchOrder) -> Mapping[str, Any] | ProcessReference:
        """Return the forkserver's answer, or the group itself if that lives though no answer came."""
        server = self._ready_forkserver()
        lease = (order.job_id, order.token)
        try:
            answer = self._request(server, _start_message(order))
        except (ChannelClosedError, TimeoutError) as error:
            self._lose_forkserver()
            with contextlib.suppress(LaunchError):
                self._ensure_forkserver()
            # A keeper claims before it reports, and its report fails now: whoever has no claim runs nothing.
            running = self._running(order)
            if running is not None:
                return running
            problem = f"job {order.job_id}: the forkserver gave no answer: {error}"
            if lease in self._unanswered:
                self._unanswered.discard(lease)
                raise LaunchError(f"{problem}; nor did the one before") from error
            self._unanswered.add(lease)
            raise NotReadyError(f"{problem}; there is one more try") from error
        self._unanswered.discard(lease)
        return answer

    def _ready_forkserver(self) -> ForkserverProcess:
        """Return the forkserver once it has told that it is prepared."""
        self._collect()
        server = self._forkserver
        if server is not None and not server.is_ready and server.is_usable():
            if self._monotonic() - self._begun_s < self._ready_timeout_s:
                raise NotReadyError("the forkserver is still preparing itself")
            self._lose_forkserver(f"was not ready within {self._ready_timeout_s:g} s")
        server = self._ensure_forkserver()
        if not server.is_ready:
            raise NotReadyError("the forkserver has just been started")
        return server

    def _request(self, server: ForkserverProcess, message: Mapping[str, Any]) -> Mapping[str, Any]:
        deadline_s = self._monotonic() + self._answer_timeout_s
        server.channel.send(message, self._answer_timeout_s)
        while (left_s := deadline_s - self._monotonic()) > 0:
            answer = server.channel.receive(left_s)
            if answer is not None and not self._note(answer):
                return answer
        raise TimeoutError(f"not within {self._answer_timeout_s:g} s")

    def _collect(self, until: _Identity | None = None) -> None:
        """Take in the exit codes that have arrived; with ``until``, wait a moment for that one."""
        deadline_s = self._monotonic() + (_EXIT_CODE_WAIT_S if until else 0.0)
        while until is None or until not in self._codes:
            if not self._take_in(max(deadline_s - self._monotonic(), 0.0)):
                return

    def _take_in(self, timeout_s: float) -> bool:
        """Note one message of the forkserver; return whether one came."""
        if self._forkserver is None or not self._forkserver.is_ours:
            return False
        try:
            message = self._forkserver.channel.receive(timeout_s)
        except ChannelClosedError:
            self._lose_forkserver()
            return False
        return message is not None and self._note(message)

    def _note(self, message: Mapping[str, Any]) -> bool:
        """Take in what is no answer to a start; return whether it was that."""
        if "ready" in message and self._forkserver is not None:
            self._forkserver.is_ready = True
            return True
        return self._note_exit(message)

    def _note_exit(self, message: Mapping[str, Any]) -> bool:
        if "exited" not in message:
            return False
        identity = (int(message["exited"]), int(message["start_ticks"]))
        self._awaited.discard(identity)
        self._codes[identity] = int(message["code"])
        while len(self._codes) > _CODES_KEPT:
            del self._codes[next(iter(self._codes))]
        return True

    def _ensure_forkserver(self) -> ForkserverProcess:
        """Return the forkserver, made anew if need be; it may not be ready yet.

        :raises LaunchError: if there can be none, or the last one was lost before it was ready. That is told
            once; the next call makes another.
        """
        if self._forkserver is not None and self._forkserver.is_usable():
            return self._forkserver
        self._lose_forkserver()
        problem, self._failed_warm_up = self._failed_warm_up, None
        if problem is not None:
            raise LaunchError(f"the forkserver {problem}; its output has the cause")
        try:
            self._forkserver = ForkserverProcess(self._preload, self._keeper_timeout_s)
        except (OSError, ChannelClosedError) as error:
            raise LaunchError(f"the forkserver could not be started: {error}") from error
        self._begun_s = self._monotonic()
        return self._forkserver

    def _lose_forkserver(self, problem: str = "ended before it was ready") -> None:
        """Forget the forkserver, ending it if need be; its living groups have no exit codes from now on."""
        server, self._forkserver = self._forkserver, None
        self._awaited.clear()
        if server is None:
            return
        server.close(0.0)
        if server.is_ours and not server.is_ready:
            self._failed_warm_up = problem


@dataclass(slots=True)
class _Ending:
    """A group that is being ended: when SIGKILL is due, and every member seen so far."""

    kill_at_s: float
    seen: dict[int, Process] = field(default_factory=dict)

    def alive(
        self, wanted: ProcessReference, members: Mapping[int, Process], *, with_keeper: bool
    ) -> list[Process]:
        """Return the members and those seen before that live on, though they may have left the group."""
        self.seen.update(members)
        present = [process for process in self.seen.values() if process.is_same(read_process(process.pid))]
        self.seen = {process.pid: process for process in present}
        return [process for process in present if with_keeper or process.pid != wanted.pid]


def _check(order: LaunchOrder) -> None:
    module, _, function = order.entry_point.partition(":")
    if not module or not function:
        raise LaunchError(
            f"job {order.job_id}: entry_point {order.entry_point!r} must be of the form 'module:function'"
        )


def _start_message(order: LaunchOrder) -> dict[str, Any]:
    markers = {JOB_ID_VARIABLE: order.job_id, LEASE_TOKEN_VARIABLE: str(order.token)}
    return {
        "start": {
            "job_id": order.job_id,
            "token": order.token,
            "entry_point": order.entry_point,
            "payload": order.payload,
            "environment": {**order.environment, **markers},
        }
    }
