"""The forkserver: a process without threads that has imported what jobs need and forks a keeper for each.

Started by :class:`airflow_provider_eaco.dispatch.local.LocalDispatcher`, whose process may have threads and
database connections that must not be forked. The standard library's ``multiprocessing`` has a forkserver as
well; it does not fit jobs that outlive their starter: it runs the starter's main module again in each child,
waits for all children when the starter leaves, and reports 255 for children that are alive when the server
itself has died.

Messages in: the setup once, then ``start``. Messages out: ``ready`` once the modules are imported,
``started`` or ``failed`` for each start, in order, and ``exited`` whenever a keeper has left.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from airflow_provider_eaco.dispatch.channel import Channel, ChannelClosedError
from airflow_provider_eaco.dispatch.keeper import Order, keep
from airflow_provider_eaco.dispatch.process_group import read_process

# A process that SIGKILL finds inside a hung file system may take for ever to leave.
_END_WAIT_S = 1.0


def main(connection_fd: int, parent_pid: int) -> None:
    """Serve the dispatcher at the other end of ``connection_fd`` until it or its process is gone.

    Keepers go on after that; nobody collects their exit codes then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=connection_fd))
    with contextlib.suppress(ChannelClosedError):
        setup = channel.receive()
        if setup is None:
            return
        sys.path[:] = setup["sys_path"]
        _preload(setup["modules"])
        server = _Server(channel, parent_pid, setup["keeper_timeout_s"])
        channel.send({"ready": os.getpid()})
        server.serve()


def _preload(modules: Sequence[str]) -> None:
    """Import ``modules``; one that fails is reported and left to the jobs that want it."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - whatever a module does, the server has to start
            sys.stderr.write(f"eaco: {name} could not be imported before the first job:\n")
            traceback.print_exc()
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate())
        sys.stderr.write(f"eaco: a preloaded module has started threads, which jobs will lack: {names}\n")
    gc.collect()
    gc.freeze()  # what is shared now stays shared: a collection in a fork would copy every page


class _Server:
    def __init__(self, channel: Channel, parent_pid: int, keeper_timeout_s: float) -> None:
        self._channel = channel
        self._keeper_timeout_s = keeper_timeout_s
        self._keepers: dict[int, int] = {}  # pid -> start ticks
        self._wake_reader, wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(wake_writer, False)
        self._wake_writer = wake_writer
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        # A fork of the starter may hold its end of the connection open, so that its end alone proves nothing.
        self._parent = os.pidfd_open(parent_pid) if os.getppid() == parent_pid else None

    def serve(self) -> None:
        """Return when the starter's process is gone; raises when the connection is."""
        if self._parent is None:
            return
        parent_ended = False
        while not parent_ended:
            # Before waiting: a read for one message may have brought the next one along.
            while (message := self._channel.receive(timeout_s=0)) is not None:
                self._channel.send(self._start(message))
            self._report_exits()
            ready, _, _ = select.select([self._channel.fileno(), self._wake_reader, self._parent], [], [])
            parent_ended = self._parent in ready
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_reader, 4096)

    def _report_exits(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            start_ticks = self._keepers.pop(pid, None)
            if start_ticks is not None:
                code = os.waitstatus_to_exitcode(status)
                self._channel.send({"exited": pid, "start_ticks": start_ticks, "code": code})

    def _start(self, message: dict[str, Any]) -> dict[str, Any]:
        """Fork a keeper for the order and return the answer: ``started`` with its identity, or ``failed``."""
        order = Order(**message["start"])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        try:
            reader, writer = os.pipe()
        except OSError as error:
            return {"failed": f"pipe: {error}"}
        try:
            pid = os.fork()
        except OSError as error:
            os.close(reader)
            os.close(writer)
            return {"failed": f"fork: {error}"}
        if pid == 0:
            self._become_keeper(order, reader, writer)
        os.close(writer)
        cause = self._await_report(pid, reader)
        process = read_process(pid)  # ended or not, it is there until it is collected
        if cause is not None or process is None:
            return {"failed": cause}
        self._keepers[pid] = process.start_ticks
        return {"started": pid, "start_ticks": process.start_ticks}

    def _await_report(self, pid: int, reader: int) -> str | None:
        """Return what the new keeper reports, or a cause of our own when it does not; closes ``reader``."""
        with open(reader, "rb") as answers:
            silence = "the keeper ended before it could report"
            if not select.select([answers], [], [], self._keeper_timeout_s)[0]:
                # A log on a file system that hangs must not hang every other start.
                silence = f"the keeper did not get as far as its job within {self._keeper_timeout_s:g} s"
                _end(pid)
            # Only now: a report that came while it was ended stands for a job that may have begun.
            os.set_blocking(reader, False)
            answer = answers.read()
        if not answer:
            return silence
        cause: str | None = json.loads(answer)
        return cause

    def _become_keeper(self, order: Order, reader: int, writer: int) -> None:
        signal.set_wakeup_fd(-1)
        self._channel.close()
        for handle in (reader, self._wake_reader, self._wake_writer, self._parent):
            if handle is not None:
                os.close(handle)

        def report(cause: str | None) -> None:
            os.write(writer, json.dumps(cause).encode("ascii"))
            os.close(writer)

        try:
            keep(order, report)
        finally:
            os._exit(1)


def _end(pid: int) -> None:
    """Send SIGKILL to a child that was not collected yet, and wait a moment for its end."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], _END_WAIT_S)
    finally:
        os.close(handle)
