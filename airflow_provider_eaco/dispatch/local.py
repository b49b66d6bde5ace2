"""Starts and ends jobs on this machine: one process group each, forked from a prepared forkserver.

:class:`LocalDispatcher` implements :class:`airflow_provider_eaco.core.ports.Dispatcher`. It keeps no thread
and imports nothing that jobs need; all it holds is one child process and one socket.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import airflow_provider_eaco
from airflow_provider_eaco.core.model.errors import LaunchError
from airflow_provider_eaco.core.ports import LaunchOrder, ProcessState
from airflow_provider_eaco.dispatch.channel import Channel, ChannelClosedError
from airflow_provider_eaco.dispatch.claim import claimant
from airflow_provider_eaco.dispatch.environment import JOB_ID_VARIABLE, LEASE_TOKEN_VARIABLE
from airflow_provider_eaco.dispatch.process_group import (
    Process,
    ProcessReference,
    members_of,
    read_process,
    read_processes,
    send_signal,
)

# Covers the imports of the first start on a slow, busy machine; a later start takes milliseconds.
DEFAULT_LAUNCH_TIMEOUT_S = 60.0
# Between a keeper's end and the forkserver's word on its exit code lie microseconds.
_EXIT_CODE_WAIT_S = 1.0
# Within this time several groups are judged by one pass over /proc.
_TABLE_AGE_S = 0.5
# A keeper leaves by itself once its job is gone; this long after SIGKILL it is taken for stuck.
_KEEPER_PATIENCE_S = 2.0
_CODES_KEPT = 4096

_COMMAND = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from airflow_provider_eaco.dispatch.forkserver import main; main({fd}, {parent})"
)

_Identity = tuple[int, int]  # pid, start ticks


class LocalDispatcher:
    """Starts process groups on this machine and finds them again, whoever has started them.

    The dispatcher may be made anew at any time, in another process as well: references stay valid. Only the
    exit codes of groups that another dispatcher started are out of reach. Not for several threads at once.

    :param preload: modules that the forkserver imports before the first job; never imported here.
    :param launch_timeout_s: longest time that one start may take, the forkserver's imports included.
    :param monotonic: clock for grace periods, in seconds; only differences count.
    """

    def __init__(
        self,
        preload: Sequence[str] = (),
        *,
        launch_timeout_s: float = DEFAULT_LAUNCH_TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._preload = tuple(preload)
        self._launch_timeout_s = launch_timeout_s
        self._monotonic = monotonic
        self._forkserver: _Forkserver | None = None
        self._awaited: set[_Identity] = set()
        self._codes: dict[_Identity, int] = {}
        self._endings: dict[str, _Ending] = {}
        self._dead_since_s: dict[str, float] = {}
        self._table: dict[int, Process] = {}
        self._table_read_s = float("-inf")

    def warm_up(self) -> None:
        """Begin to prepare the forkserver without waiting for it, so that the first start is a quick one.

        :raises LaunchError: if no process can be started.
        """
        self._ensure_forkserver()

    def start(self, order: LaunchOrder) -> str:
        """Start the order and return its reference; if its lease's group lives already, return that one's.

        A bad entry point is no launch error: the group then ends with code 1 and the cause in its output.
        Output goes to the file named by ``EACO_LOG_FILE`` in the order's environment, else where the output
        of this process goes.

        :raises LaunchError: with the operating system's cause; then nothing was started.
        """
        running = _find(order)
        if running is not None:
            return str(running)
        _check(order)
        answer = self._request_start(order)
        if isinstance(answer, ProcessReference):
            return str(answer)
        if "failed" in answer:
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

    def _request_start(self, order: LaunchOrder) -> Mapping[str, Any] | ProcessReference:
        """Return the forkserver's answer, or the group itself if that lives though no answer came."""
        deadline_s = self._monotonic() + self._launch_timeout_s
        for is_last in (False, True):
            try:
                return self._request(_start_message(order), deadline_s)
            except (ChannelClosedError, TimeoutError) as error:
                self._lose_forkserver()
                running = _find(order)
                if running is not None:
                    return running
                # A forkserver that died between two starts deserves a successor; one that hangs does not.
                if is_last or isinstance(error, TimeoutError):
                    raise LaunchError(
                        f"job {order.job_id}: the forkserver gave no answer: {error}"
                    ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _request(self, message: Mapping[str, Any], deadline_s: float) -> Mapping[str, Any]:
        channel = self._ensure_forkserver().channel
        channel.send(message, max(deadline_s - self._monotonic(), 0.0))
        while (left_s := deadline_s - self._monotonic()) > 0:
            answer = channel.receive(left_s)
            if answer is not None and not self._note_exit(answer):
                return answer
        raise TimeoutError(f"not within {self._launch_timeout_s:g} s")

    def _collect(self, until: _Identity | None = None) -> None:
        """Take in the exit codes that have arrived; with ``until``, wait a moment for that one."""
        deadline_s = self._monotonic() + (_EXIT_CODE_WAIT_S if until else 0.0)
        while self._forkserver is not None and (until is None or until not in self._codes):
            try:
                message = self._forkserver.channel.receive(max(deadline_s - self._monotonic(), 0.0))
            except ChannelClosedError:
                self._lose_forkserver()
                return
            if message is None:
                return
            self._note_exit(message)

    def _note_exit(self, message: Mapping[str, Any]) -> bool:
        if "exited" not in message:
            return False
        identity = (int(message["exited"]), int(message["start_ticks"]))
        self._awaited.discard(identity)
        self._codes[identity] = int(message["code"])
        while len(self._codes) > _CODES_KEPT:
            del self._codes[next(iter(self._codes))]
        return True

    def _ensure_forkserver(self) -> _Forkserver:
        if self._forkserver is not None and self._forkserver.is_usable():
            return self._forkserver
        self._lose_forkserver()
        try:
            self._forkserver = _Forkserver(self._preload)
        except (OSError, ChannelClosedError) as error:
            raise LaunchError(f"the forkserver could not be started: {error}") from error
        return self._forkserver

    def _lose_forkserver(self) -> None:
        """Forget the forkserver, ending it if need be; its living groups have no exit codes from now on."""
        if self._forkserver is not None:
            self._forkserver.close(0.0)
        self._forkserver = None
        self._awaited.clear()


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


class _Forkserver:
    """The forkserver's process and our end of the connection to it."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._owner_pid = os.getpid()
        ours, theirs = socket.socketpair()
        root = str(Path(airflow_provider_eaco.__file__).parent.parent)
        command = _COMMAND.format(root=root, fd=theirs.fileno(), parent=os.getpid())
        with theirs:
            try:
                # A session of its own: Ctrl-C in the scheduler's terminal is for the scheduler alone.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", command],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self.channel = Channel(ours)
        try:
            self.channel.send({"sys_path": sys.path, "modules": list(preload)})
        except ChannelClosedError:
            self.close(0.0)
            raise

    def is_usable(self) -> bool:
        """Whether it lives and is ours: a fork of this process must not speak on the same connection."""
        return self._owner_pid == os.getpid() and self._process.poll() is None

    def close(self, timeout_s: float) -> None:
        """Close the connection, and end the process if it has not ended within ``timeout_s`` seconds."""
        self.channel.close()
        if self._owner_pid != os.getpid():
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _find(order: LaunchOrder) -> ProcessReference | None:
    pid = claimant(order.job_id, order.token)
    process = None if pid is None else read_process(pid)
    if process is None:
        return None
    return ProcessReference.here(process.pid, process.start_ticks, order.token, order.job_id)


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
